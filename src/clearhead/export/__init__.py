"""Export models to ONNX and to the folders of other libraries."""
