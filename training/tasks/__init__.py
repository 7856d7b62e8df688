"""Generated chats whose right answers need the context; deterministic for a seed and the material it draws from."""

from training.tasks.conversation import Conversation, plain_text, write_conversation
from training.tasks.draw import Draw, Material
from training.tasks.episode import Episode, Turn
from training.tasks.mixture import TASKS, Task

__all__ = (
    "TASKS",
    "Conversation",
    "Draw",
    "Episode",
    "Material",
    "Task",
    "Turn",
    "plain_text",
    "write_conversation",
)
