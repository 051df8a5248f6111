"""The scheduler without input, output or a clock of its own: facts in (`events`), orders out, data in `request`."""
