"""SQL text to Substrait, by way of DataFusion: guarded before, rewritten where its parser is wrong."""
