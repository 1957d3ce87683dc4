"""Quality of service, by what a topic is for."""

from typing import Any

from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSProfile,
    ReliabilityPolicy,
)

from flashrt_ros.control.guards import GuardError


def _profile(depth: int, reliable: bool = True, latched: bool = False) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


STATE = _profile(10)  # robot states and commands: each one counts, old ones do not
STATE_PUB = _profile(200)  # and who records on a busy machine may be ten seconds behind
TELEMETRY = _profile(200)  # for whoever records: nothing lost in a short pause
LATCHED = _profile(1, latched=True)  # the newest is kept for whoever joins later
ALIVE = _profile(1, latched=True)  # LATCHED, and whoever listens learns that the sender hangs
ALIVE.liveliness = LivelinessPolicy.MANUAL_BY_TOPIC
ALIVE.liveliness_lease_duration = Duration(seconds=2.0)
IMAGE_PUB = _profile(4)  # reliable offers serve best-effort and reliable readers alike


def image_subscription(reliability: str) -> QoSProfile:
    """Return the profile of an image subscription.

    Args:
        reliability: 'best_effort' connects to any camera; 'reliable' loses no frame but connects
            only to a publisher that offers it.
    """
    if reliability not in ('best_effort', 'reliable'):
        raise GuardError(
            'parameter',
            f'image_reliability is {reliability!r}; it must be best_effort or reliable',
        )
    return _profile(4, reliable=reliability == 'reliable')


def mismatch(topic: str, parameter: str, log: Any) -> SubscriptionEventCallbacks:
    """Return callbacks that say loudly when a publisher of ``topic`` cannot be heard.

    A reliable reader hears reliable publishers alone; a best-effort reader hears both.
    """

    def incompatible(_: Any) -> None:
        log.error(
            f'nothing arrives on {topic}: its publisher is best-effort and this reader asks for '
            f'reliable delivery; set {parameter} to best_effort, or the publisher to reliable'
        )

    return SubscriptionEventCallbacks(incompatible_qos=incompatible)
