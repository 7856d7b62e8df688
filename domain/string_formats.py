"""Formats of strings as regular expressions, exact but for leap seconds: no answer has those."""

_DAY = "(0[1-9]|1[0-9]|2[0-8])"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_MONTHS = f"((0[13578]|1[02])-({_DAY}|29|30|31)|(0[469]|11)-({_DAY}|29|30)|02-{_DAY})"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"

DATE = f"([0-9]{{4}}-{_MONTHS}|{_LEAP_YEAR}-02-29)"
TIME = f"{_CLOCK}([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
DATE_TIME = f"{DATE}[Tt]{TIME}"

__all__ = ("DATE", "DATE_TIME", "TIME")
