"""The supervision of the engine: replaced when lost, watched for being stuck. Uses `answers` and `models`."""
