"""Export a model as a web page: it runs in the visitor's browser with ONNX Runtime Web."""
