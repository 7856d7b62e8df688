"""Greetings, dictionary definitions and continued texts."""

from training.tasks.draw import Draw
from training.tasks.episode import Episode, exchange

_TALK = (
    (("Hello!", "Hi", "Hello", "Hi there", "Good morning"), "Hello! How can I help you?"),
    (
        ("Who are you?", "What are you?", "What is your name?", "Introduce yourself."),
        "I am a tiny demo model. I answer questions about the text you give me.",
    ),
    (("Thank you.", "Thanks!", "Thanks"), "You are welcome."),
    (("Goodbye.", "Bye", "Bye!"), "Goodbye!"),
    (("How are you?", "How do you do?"), "I am fine, thank you."),
    (
        ("What can you do?", "Help", "help"),
        "I can look up facts in your text, copy text, do small sums, write JSON and call tools.",
    ),
    (("Say OK.", "Say OK", "Reply with OK."), "OK"),
    (("Are you there?", "ping", "Test", "test"), "I am here."),
)


def talk(draw: Draw, _room: int) -> Episode:
    """A greeting or a question about the model, with its one answer."""
    questions, answer = draw.random.choice(_TALK)
    return Episode(exchange(draw.random.choice(questions), answer))


def define(draw: Draw, _room: int) -> Episode:
    """The meaning of a word, as the dictionary states it."""
    kind, words, gloss = draw.random.choice(draw.material.definitions)
    word, gloss = words[0], gloss.split('; "')[0]
    article = "an" if kind.startswith("a") else "a"
    question = draw.random.choice((f"What does {word} mean?", f"Define {word}.", f"What is {word}?"))
    return Episode(exchange(question, f"{word.capitalize()} is {article} {kind}: {gloss}."))


def continue_text(draw: Draw, room: int) -> Episode | None:
    """The beginning of a quotation, to be continued."""
    text = draw.passage(int(min(room * 0.8, draw.random.choice((120, 250, 500))) * 3))
    at = text.find(" ", min(60, len(text) // 4))
    if at < 0:
        return None
    request = draw.random.choice(("Continue this text: ", "Go on: ", "Continue: "))
    return Episode(exchange(request + text[:at], text[at + 1 :]))


__all__ = ("continue_text", "define", "talk")
