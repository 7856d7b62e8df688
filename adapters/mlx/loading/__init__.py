"""From a model's files to a loaded model. files < weights_digest, network < assembly; probe < assembly."""
