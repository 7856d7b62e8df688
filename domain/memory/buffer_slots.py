"""How many token slots a buffer of full KV has: the rule by which it grows, and by which it is charged.

A buffer that is full is copied into a larger one, all of it, and on a GPU the larger one is mapped anew: of 10 GB that
takes longer than computing a turn of some hundred tokens. So a long one grows by a share of its length, and not by the
few hundred tokens of a short one. The number of slots follows from the number of tokens alone, whatever the way to
them was: kernels may choose their order of summation by it.
"""

SPARE_SHARE = 16
"""A buffer has fewer spare slots than one part in so many of its tokens, or than one step."""


def buffer_slots(num_tokens: int, step: int) -> int:
    """Slots of a buffer of `num_tokens`. `step`: a power of two, what short ones grow by; 1: exactly as many.

    Longer ones grow by the largest power of two in a sixteenth of their length, so that a step's multiples are among
    those of every smaller one.
    """
    if step > 1:
        step = max(step, 1 << (num_tokens // SPARE_SHARE).bit_length() >> 1)
    return -(-num_tokens // step) * step
