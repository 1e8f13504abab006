"""Tables that map names and settings of other libraries to ours."""
