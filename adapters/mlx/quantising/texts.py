"""The texts that sensitivities are measured on, and, apart from them, those that a copy is compared on. Written for
Cairn, so that measuring downloads nothing; each has prose, code, a conversation with data, and other languages and
numbers."""

MEASURED = (
    """The path over the pass is marked by cairns, stacks of flat stones that stand a little higher than the snow in
spring. Nobody knows who built the first of them. Shepherds add a stone when they go up in May, and another when they
bring the flock down before the first frost, so that the stacks grow even in years when a storm takes a few. In fog you
walk from one to the next: you stand beside the last one, look for a darker spot in the grey, and do not leave before
you have found it. If you lose the way, you go back to the stack that you know and begin again from there. What has been
found once need not be found a second time, my grandmother said, as long as somebody takes the trouble to put a stone on
it. She had crossed the pass alone at the age of nine, carrying a letter to her uncle in the next valley.
""",
    '''def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of half-open intervals as a sorted list without overlaps."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if start >= end:
            raise ValueError(f"an interval must not be empty: {start}..{end}")
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


class Counter:
    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, word: str, times: int = 1) -> None:
        self._counts[word] = self._counts.get(word, 0) + times
''',
    """User: Which train reaches Bergen before noon on Friday? I have two suitcases and would rather not change.
Assistant: I will look at the timetable for Friday morning.
{"tool": "timetable", "arguments": {"from": "Oslo", "to": "Bergen",
"date": "2026-05-22", "latest_arrival": "12:00"}}
{"trains": [{"number": 61, "departure": "06:25", "arrival": "13:12", "changes": 0}, {"number": 605,
"departure": "23:03", "arrival": "06:51", "changes": 0, "sleeper": true}], "currency": "NOK", "note": null}
Assistant: No day train arrives before noon. The night train 605 leaves Oslo on Thursday at 23:03 and is in Bergen at
06:51, without a change, and it has sleeping compartments. Shall I reserve one for you?
User: Yes, a lower berth please, and tell me what it costs.
""",
    """Der Zug hält in Finse, dem höchsten Bahnhof der Strecke, auf 1222 Metern. Au printemps, la neige couvre encore
les toits, et les skieurs descendent du train avec leurs chiens. El viaje dura unas siete horas y el paisaje cambia sin
descanso: bosques, lagos helados, montañas. 列車は山の間をゆっくり走り、窓の外には湖が見える。 Поезд прибывает в
полдень, если нет снега на путях.

| year | stones | height (m) |
|------|--------|------------|
| 2023 | 1,204  | 1.85       |
| 2024 | 1,317  | 1.92       |

The mean of n values is x = (x_1 + ... + x_n) / n; for 3, 5 and 10 it is 18 / 3 = 6, and the variance is 26 / 3 = 8.67.
""",
)

COMPARED = (
    """When the harbour froze, the fishermen pulled their boats on the ice and repaired them by the light of the short
days. The smell of tar reached the houses on the hill. Children who should have been at school carried nails in their
caps and were paid with dried apples. In the third week a ship came as far as the lighthouse and could go no further;
its crew walked over to the town, eleven men in a line, each with a hand on the shoulder of the one before him. They
stayed until March, and two of them never left. One opened a bakery in the street behind the church. The other taught
the children to read the stars, which he said was the only map that nobody could fold the wrong way.
""",
    """package main

import (
	"errors"
	"fmt"
	"os"
)

var errEmpty = errors.New("the queue is empty")

type Queue[T any] struct {
	items []T
}

func (q *Queue[T]) Push(item T) { q.items = append(q.items, item) }

func (q *Queue[T]) Pop() (T, error) {
	var none T
	if len(q.items) == 0 {
		return none, errEmpty
	}
	first := q.items[0]
	q.items = q.items[1:]
	return first, nil
}

func main() {
	queue := &Queue[string]{}
	for _, name := range os.Args[1:] {
		queue.Push(name)
	}
	for {
		name, err := queue.Pop()
		if errors.Is(err, errEmpty) {
			return
		}
		fmt.Printf("hello, %s\\n", name)
	}
}
""",
    """User: My bread does not rise. The dough is 500 g of flour, 350 g of water, 10 g of salt and 2 g of dry yeast.
Assistant: With 2 g of dry yeast at 18 degrees the first rise takes six to eight hours. How warm is your kitchen, and
how long did you wait?
User: Two hours, it is rather cold here. Can I save it?
Assistant: Yes. Cover it and leave it overnight; it should double. Fold it once before you shape it, let it rest for
another hour, and bake it at 240 degrees for 35 minutes.
{"recipe": "bread", "flour_g": 500, "hydration": 0.7, "steps": [{"name": "rise", "hours": 8}, {"name": "shape"},
{"name": "bake", "minutes": 35, "celsius": 240}], "vegan": true}
""",
    """La boulangerie ouvre à six heures, mais le pain noir n'est prêt qu'à midi. Die Kinder kommen nach der Schule und
fragen nach den Brötchen vom Vortag, die die Hälfte kosten. O padeiro conhece todos pelo nome e guarda sempre um pão
para a velha professora. 面包师傅说，好的面包需要时间，不需要秘密。 Il forno a legna resta caldo fino al mattino.

SELECT name, COUNT(*) AS loaves, SUM(price) AS total
FROM sales JOIN customers ON customers.id = sales.customer
WHERE sales.day BETWEEN '2026-01-01' AND '2026-01-31'
GROUP BY name HAVING COUNT(*) > 3 ORDER BY total DESC LIMIT 10;

A right triangle with legs 5 and 12 has the hypotenuse 13, since 25 + 144 = 169; its area is 5 * 12 / 2 = 30.
""",
)

TEXTS = (MEASURED, COMPARED)
