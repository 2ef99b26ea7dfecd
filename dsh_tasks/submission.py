"""Submission: a validated request to start one child, with every default decided."""

from __future__ import annotations

from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dsh_tasks.errors import OptionRefused

V = TypeVar("V", bound=BaseModel)

MaxDepth = int | Literal["provider-managed"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AgentOptions(_Value):
    """What a start may override of the model route. An option left out is inherited, never emptied."""

    provider: str | None = None
    model: str | None = None
    max_tokens: int | None = Field(None, gt=0, alias="maxTokens")

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class ToolFilter(_Value):
    """Which of the global tools a child sees. A filter with only `deny` is no allow-list of nothing."""

    allow: tuple[str, ...] | None = Field(None, strict=False)
    deny: tuple[str, ...] | None = Field(None, strict=False)

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.allow is None and self.deny is None:
            msg = "a tool filter must name allow or deny"
            raise ValueError(msg)
        return self

    def admits(self, name: str) -> bool:
        """Whether a tool of this name stays."""
        allowed = self.allow is None or name in self.allow
        return allowed and (self.deny is None or name not in self.deny)


class Route(_Value):
    """A model route as a log names it."""

    provider: str
    model: str


class Policy(_Value):
    """All that a start fixes for its child; stored in the record as JSON."""

    agent_options: AgentOptions | None = None
    tool_filter: ToolFilter | None = None
    persona: str | None = None
    output_schema: dict[str, Any] | None = None
    max_depth: MaxDepth = 3
    parent_route: Route | None = None
    """The route of the parent's log; used where nothing else names a model."""

    def to_json(self) -> str:
        """The policy as the record holds it; what was left out stays out."""
        return self.model_dump_json(exclude_none=True, by_alias=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Policy:
        """Read what `to_json` wrote."""
        return cls.model_validate_json(text)


def checked(model: type[V], option: str, given: Any) -> V:
    """`given` as `model`; raises OptionRefused that names the option and the first fault."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in (option, *first["loc"]))
        raise OptionRefused(path, first["msg"]) from None
