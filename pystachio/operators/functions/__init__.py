"""Scalar functions: one function, one entry of the registry.

To add a function: write its kernel in the module of its theme (or a new one), append a `Function(name, type rule,
kernel)` to that module's `FUNCTIONS`, and compare it with DuckDB in the theme's test. `registry` collects the modules.
A kernel of a strict function (the default NULL rule) never looks at NULLs, except to not fail on the arbitrary values
under them: `invocation.valid` says which rows count.
"""
