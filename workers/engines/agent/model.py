"""Model routes: which model answers a child, and one model object per route and process.

The order: the start's `agentOptions`, the operator's `DSH_TASKS_MODEL`, the parent's route where its
key is in the environment, `DEEPSEEK_API_KEY`, else the offline model.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, create_async_httpx2_client, infer_model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from dsh_tasks.errors import OptionRefused
from dsh_tasks.submission import Policy, Route
from workers.engines.agent.images import Images
from workers.engines.agent.offline import NAME as OFFLINE
from workers.engines.agent.offline import OfflineModel
from workers.engines.agent.prices import Price
from workers.engines.agent.streams import StreamTransport, has_proxy
from workers.engines.transcript import RouteName

log = logging.getLogger(__name__)

DEEPSEEK_DEFAULT = "deepseek:deepseek-chat"

WINDOWS: Mapping[str, int] = {"deepseek:deepseek-chat": 131_072, "deepseek:deepseek-reasoner": 131_072}
"""As the provider states them, where genai-prices 0.2 still has the size of an earlier model of that name."""

MARKS_CACHE = frozenset({"anthropic", "bedrock", "openrouter"})
TEXT_ONLY = frozenset({"deepseek"})
"""Providers whose API refuses a request with an image; pydantic-ai does not know it of them."""
PROVIDER_NAMES: Mapping[str, str] = {"deepseek-official": "deepseek"}
"""The harness' names of providers, where pydantic-ai has another."""
KEYS: Mapping[str, str] = {
    "deepseek": "DEEPSEEK_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openai-chat": "OPENAI_API_KEY",
    "openai-responses": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "groq": "GROQ_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "moonshotai": "MOONSHOTAI_API_KEY",
}
"""Environment names of the providers to which a parent's route may lead."""
STREAMED = frozenset(
    {"anthropic", "deepseek", "moonshotai", "openai", "openai-chat", "openai-responses", "openrouter"}
)
"""Providers whose package takes an httpx2 client."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that answers, and how rows and lists name it."""

    name: str
    """In pydantic-ai's words: `provider:model`, or `offline`."""
    model: Model
    route: RouteName
    settings: ModelSettings = field(default_factory=ModelSettings)
    """What goes into every request of this model."""
    images: Images = field(default_factory=Images)
    window: int | None = None
    """Tokens that input and output may take together; None where nobody knows."""
    price: Price | None = None
    """What the operator says that it costs; else genai-prices is asked."""

    @property
    def is_offline(self) -> bool:
        """No real model answers."""
        return self.name == OFFLINE

    @property
    def system(self) -> str:
        """The provider as pydantic-ai names it in answers: signed reasoning goes back only to the same."""
        return self.model.system

    @property
    def marks_cache(self) -> bool:
        """Its provider caches a prefix only up to where a request says so."""
        return self.system in MARKS_CACHE

    @property
    def says_finish(self) -> bool:
        """Its answers say why they ended; pydantic-ai's own test models do not."""
        return not isinstance(self.model, FunctionModel | TestModel)


def route_name(
    policy: Policy, operator_model: str | None, environment: Mapping[str, str] = os.environ
) -> tuple[str, str]:
    """The name of the model for a child, and the option that chose it. Pure.

    An option of `agentOptions` that is left out is taken from the next source that has it.
    Raises OptionRefused where what was chosen names no model.
    """
    inherited = _inherited(policy.parent_route, operator_model, environment)
    options = policy.agent_options
    if options is None or (options.provider is None and options.model is None):
        return inherited
    if OFFLINE in (options.provider, options.model):
        return OFFLINE, "agentOptions.model"
    provider, _, model = inherited[0].rpartition(":")
    if options.provider is None and options.model is not None and ":" in options.model:
        return options.model, "agentOptions.model"
    provider = PROVIDER_NAMES.get(options.provider, options.provider) if options.provider else provider
    model = options.model or model
    if not provider or not model or model == OFFLINE:
        missing = "model" if provider else "provider"
        raise OptionRefused(f"agentOptions.{missing}", "nothing names it, and there is none to inherit")
    return f"{provider}:{model}", "agentOptions"


def _inherited(
    parent: Route | None, operator_model: str | None, environment: Mapping[str, str]
) -> tuple[str, str]:
    if operator_model:
        return operator_model, "DSH_TASKS_MODEL"
    if parent is not None and OFFLINE not in (parent.provider, parent.model):
        provider = PROVIDER_NAMES.get(parent.provider, parent.provider)
        if environment.get(KEYS.get(provider, "")):
            return f"{provider}:{parent.model}", "the parent's route"
    if environment.get("DEEPSEEK_API_KEY"):
        return DEEPSEEK_DEFAULT, "DEEPSEEK_API_KEY"
    return OFFLINE, "no model and no key"


class Models:
    """The model objects of one process: one HTTP client per provider, shared by all children.

    A provider in STREAMED has a connection for each call that goes on. A client of pydantic-ai itself opens
    up to 1,000, and what asks for one more waits for one.
    """

    def __init__(
        self, *, context_window: int | None = None, prices: Mapping[str, Price] = MappingProxyType({})
    ) -> None:
        """`context_window` (tokens) holds in place of what is known of each model; 0 is unbounded.

        `prices` are the operator's, by the name of the model.
        """
        self._context_window = context_window
        self._prices = prices
        self._models: dict[str, ResolvedModel] = {}
        self._providers: dict[str, Provider[Any]] = {}
        self._making = asyncio.Lock()

    async def ready(self, policy: Policy, operator_model: str | None) -> ResolvedModel:
        """The same as `resolve`, with a new route made off the loop.

        A provider's package takes a second or more to import; on the loop that stops every child of the
        process, and a stop of two thirds of the lease ends the process.
        """
        name, _ = route_name(policy, operator_model)
        if name in self._models:
            return self._models[name]
        async with self._making:
            return await asyncio.to_thread(self.resolve, policy, operator_model)

    def resolve(self, policy: Policy, operator_model: str | None) -> ResolvedModel:
        """The model for a child. Raises OptionRefused where the name or its key does not hold."""
        name, option = route_name(policy, operator_model)
        if name not in self._models:
            self._models[name] = self._made(name, option)
            log.info("model %s, chosen by %s", name, option)
        return self._models[name]

    def _made(self, name: str, option: str) -> ResolvedModel:
        if name == OFFLINE:
            return ResolvedModel(OFFLINE, OfflineModel(), RouteName(OFFLINE, OFFLINE))
        try:
            model = infer_model(name, self._provider)
        except (UserError, ValueError, ImportError) as error:
            raise OptionRefused(option, _why(name, error)) from None
        provider, _, model_name = name.rpartition(":")
        route = RouteName(provider or model.system, model_name)
        return ResolvedModel(
            name,
            model,
            route,
            # The prefix is paid once for all steps of a child, and for all forks of one seed.
            ModelSettings(cache=True, **once_only(model)),
            images_of(model),
            self._window(name, model),
            self._prices.get(name),
        )

    def _window(self, name: str, model: Model) -> int | None:
        if self._context_window is not None:
            return self._context_window or None
        known = [size for size in (WINDOWS.get(name), model.context_window) if size]
        return max(known, default=None)

    def _provider(self, name: str) -> Provider[Any]:
        if name not in self._providers:
            provider = provider_of(name)
            # Two places that retry multiply: the one is patience.py.
            if hasattr(provider.client, "max_retries"):
                provider.client.max_retries = 0
            self._providers[name] = provider
        return self._providers[name]


def provider_of(name: str) -> Provider[Any]:
    """A provider as pydantic-ai makes it, over our transport where that is known to fit."""
    if name not in STREAMED or has_proxy():
        return infer_provider(name)
    made: Any = infer_provider_class(name)
    provider: Provider[Any] = made(http_client=create_async_httpx2_client(transport=StreamTransport()))
    if name != "anthropic":
        # Its package takes a second to import: with the provider, off the loop, and not before.
        from workers.engines.agent.completions import ask_plainly  # noqa: PLC0415

        ask_plainly(provider.client)
    return provider


def with_effort(model: ResolvedModel, policy: Policy) -> ResolvedModel:
    """The model told how much to reason, where the start says so. Raises OptionRefused where it cannot be."""
    effort = None if policy.agent_options is None else policy.agent_options.effort
    if effort is None:
        return model
    if not model.model.profile.get("supports_thinking", False):
        raise OptionRefused("agentOptions.effort", f"{model.name!r} cannot be told how much to reason")
    return replace(model, settings=ModelSettings(**model.settings, thinking=effort))


def images_of(model: Model) -> Images:
    """What a model takes of images."""
    takes = model.system not in TEXT_ONLY and model.profile.get("supports_image_input", True)
    return Images() if takes else Images(most=0)


def once_only(model: Model) -> ModelSettings:
    """Settings that keep a provider's client from retrying where it was not told already.

    The setting costs a copy of the client for each request, so it is left out for those that were.
    """
    client = getattr(model, "client", None)
    if getattr(client, "max_retries", None) == 0 or "max_retries" in model.unsupported_settings:
        return ModelSettings()
    return ModelSettings(max_retries=0)


def _why(name: str, error: Exception) -> str:
    provider = name.partition(":")[0]
    key = KEYS.get(provider)
    if isinstance(error, ImportError):
        return f"{name!r} needs a package that is not installed"
    if key is not None and not os.environ.get(key):
        return f"{name!r} needs {key}, which this worker does not have"
    return f"{name!r} is no model that pydantic-ai knows, or its provider is not set up"
