"""Read GGUF files: header, configuration, tensors and tokenizer. `convert` writes them as a safetensors folder."""
