"""Parameters: each has a default, a range or choices, and a description with its unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import ParameterException
from rclpy.node import Node

from flashrt_ros.errors import FlashrtError


class ParameterError(FlashrtError, ValueError):
    """A parameter has a type or value it cannot have."""


@dataclass(frozen=True)
class Param:
    """One parameter.

    Attributes:
        name: Its name in the YAML file.
        default: Value when the file says nothing; its type is the parameter's type.
        description: What it means, with its unit.
        low: Smallest number, or None.
        high: Largest number, or None.
        choices: Allowed values; empty = any.
    """

    name: str
    default: Any
    description: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def descriptor(self) -> ParameterDescriptor:
        """Return it as rclpy wants it."""
        descriptor = ParameterDescriptor(description=self.description)
        if self.choices:
            descriptor.additional_constraints = 'one of: ' + ', '.join(self.choices)
        if self.low is None or self.high is None or isinstance(self.default, (list, str, bool)):
            return descriptor
        if isinstance(self.default, int):
            limits = IntegerRange(from_value=int(self.low), to_value=int(self.high), step=0)
            descriptor.integer_range = [limits]
        else:
            span = FloatingPointRange(from_value=float(self.low), to_value=float(self.high))
            descriptor.floating_point_range = [span]
        return descriptor


def declare(node: Node, params: Sequence[Param]) -> SimpleNamespace:
    """Declare ``params`` on ``node`` and return their values by name.

    Raises:
        ParameterError: A value from the parameter file is of another type or out of range.
    """
    values = {}
    for param in params:
        try:
            value = node.declare_parameter(param.name, param.default, param.descriptor()).value
        except ParameterException as error:
            where = f'{node.get_name()}: parameter {param.name}'
            raise ParameterError(f'{where}: {error}; {param.description}{_range(param)}') from None
        if param.choices and value not in param.choices:
            raise ParameterError(
                f'{node.get_name()}: parameter {param.name} is {value!r}; it must be one of '
                + ', '.join(param.choices)
            )
        values[param.name] = list(value) if isinstance(param.default, list) else value
    return SimpleNamespace(**values)


def pairs(node: Node, name: str, values: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Return a list parameter of ``KEY=VALUE`` as a dict; each key must be one of ``known``.

    Raises:
        ParameterError: An entry is no pair, or its key is not known.
    """
    found = {}
    for entry in filter(None, values):
        key, equals, value = entry.partition('=')
        if not equals or not value or key not in known:
            raise ParameterError(
                f'{node.get_name()}: parameter {name} has {entry!r}; it must be KEY=TOPIC with '
                f'one of these keys: {", ".join(known)}'
            )
        found[key] = value
    return found


def _range(param: Param) -> str:
    return '' if param.low is None else f', from {param.low} to {param.high}'
