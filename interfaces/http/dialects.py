"""The dialects that a server speaks; the first one's errors are for paths that nobody owns."""

from interfaces.http.answering.dialect import Dialects
from interfaces.http.anthropic.dialect import Anthropic
from interfaces.http.ollama.dialect import Ollama
from interfaces.http.openai.dialect import OpenAi
from interfaces.http.responses.dialect import OpenAiResponses

DIALECTS = Dialects([OpenAi(), OpenAiResponses(), Anthropic(), Ollama()])
