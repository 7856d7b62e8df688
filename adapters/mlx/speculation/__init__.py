"""The model's own drafters: a prediction head of its weights, or a smaller model. drafting < heads, draft_model."""
