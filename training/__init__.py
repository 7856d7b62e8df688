"""The making of the embedded models: texts and chats, tokenizer, training, evaluation, export. Not part of the server.

Needs PyTorch, numpy, tokenizers and safetensors, which the server's environment need not have.
"""
