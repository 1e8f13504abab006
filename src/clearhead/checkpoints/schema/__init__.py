"""Tables that map parameter names, configs and heads of other libraries to ours."""
