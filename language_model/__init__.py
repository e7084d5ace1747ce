"""Language models: masked (BERT) and causal (GPT), trained to a fixed quality on the clock."""
