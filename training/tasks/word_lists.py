"""The closed word lists that chats draw from. Order matters: a seed picks by position."""


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words(
    "Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Leo Maria Nina Oscar Paula Quinn Rosa Sam Tina "
    "Victor Wendy Yuri Zoe Adam Bella Carl Diana Eric Fiona George Hana Ivan Julia Kevin Laura Mike Nora Omar Pia "
    "Ralf Sara Tom Uma Vera Will Xena Yara Anton Berta Chris Doris Elias Flora Gina Hugo Iris Jonas Kate Luca Mona "
    "Nils Olga Peter Rita Simon Thea Ulf Viola Walter"
)

CITIES = _words(
    "Paris London Berlin Madrid Rome Vienna Oslo Lisbon Dublin Athens Prague Warsaw Tokyo Delhi Cairo Lima Quito "
    "Boston Denver Dallas Miami Seoul Hanoi Manila Nairobi Accra Tunis Dakar Sydney Perth Ottawa Toronto Havana "
    "Bogota Milan Porto Lyon Bern Basel Turin"
)

COLORS = _words("red blue green yellow black white orange purple pink brown gray silver gold")

PETS = _words("dog cat bird horse fish turtle rabbit hamster parrot snake")

FOODS = _words("pizza pasta rice soup salad bread cheese apples bananas curry sushi tacos beans fish eggs")

JOBS = _words("teacher doctor nurse baker farmer pilot painter driver lawyer engineer singer writer chef gardener")

ATTRIBUTES = _words("code number key password secret room badge ticket color pin id token")
"""The properties that facts state of a subject: the code of Alice, the badge of Bob."""

__all__ = ("ATTRIBUTES", "CITIES", "COLORS", "FOODS", "JOBS", "NAMES", "PETS")
