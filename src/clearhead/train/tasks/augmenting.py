def augmented(texts, told, draws, tokenizer, size):
    return texts
