"""Conversations: messages as clients send them, and what a chat template is told of them."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from swiftspec.files.reading import parse_foreign_json, shown
from swiftspec.server.fields import Body, Json, Name

_MOST_MESSAGES = 10_000


class _TextPart(Body):
    type: Literal["text"]
    text: str


class Message(Body):
    """A message of a conversation; its text may come in parts."""

    role: Name
    content: str | tuple[_TextPart, ...] = ""
    name: Name | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[Json, ...] = ()
    tool_call_id: Name | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, content: Any) -> Any:
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") != "text":
                raise ValueError(f"content has a part of type {shown(part.get('type'))}; expected text")
        return content

    def for_template(self) -> Json:
        """The message as templates expect it: one text, arguments of calls as an object, reasoning by all its names."""
        said: Json = {"role": self.role, "content": self.content}
        if not isinstance(self.content, str):
            said["content"] = "".join(part.text for part in self.content)
        if (reasoning := self.reasoning or self.reasoning_content) is not None:
            said |= dict.fromkeys(("reasoning", "reasoning_content", "thinking"), reasoning)
        if self.tool_calls:
            said["tool_calls"] = [_with_arguments(call) for call in self.tool_calls]
        return said | {name: value for name in ("name", "tool_call_id") if (value := getattr(self, name)) is not None}


def _with_arguments(call: Json) -> Json:
    """A call whose arguments, a JSON text in OpenAI's API, are an object. ValueError if they are none."""
    function = call.get("function")
    if not isinstance(function, dict):
        raise ValueError(f"messages: tool_calls has {shown(call)}; expected a function in each")
    arguments = function.get("arguments") or {}
    with suppress(ValueError):
        arguments = parse_foreign_json(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict):
        raise ValueError(f"messages: arguments of a tool call are {shown(arguments)}; expected a JSON object")
    return {**call, "function": {**function, "arguments": arguments}}


class Conversation(Body):
    """What a chat template makes a text of."""

    tools: tuple[Json, ...] = ()
    documents: tuple[Json, ...] = ()
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    chat_template_kwargs: Json = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("add_generation_prompt: true with continue_final_message; expected one of both")
        return self

    def conversation(self, messages: Iterable[Message]) -> Json:
        """Arguments of `ChatTemplate.render`. ValueError if a message is not possible."""
        ends = self.continue_final_message
        return {
            "messages": [message.for_template() for message in messages],
            "tools": list(self.tools) or None,
            "documents": list(self.documents) or None,
            "add_generation_prompt": (not ends) if self.add_generation_prompt is None else self.add_generation_prompt,
            "continue_final_message": ends,
            "arguments": self.chat_template_kwargs,
        }


Messages = Annotated[tuple[Message, ...], Field(max_length=_MOST_MESSAGES)]
