"""Sampling: logit_rules, sampled < sampler."""
