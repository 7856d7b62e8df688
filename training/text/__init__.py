"""The texts that chats quote, and the tokenizer."""
