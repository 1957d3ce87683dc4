"""A subgoal without word from its planner counts for a while, in ticks."""

from flashrt_ros.control.lease import SubgoalLease


def test_without_a_limit_it_never_expires() -> None:
    """0 ticks: for ever."""
    lease = SubgoalLease()
    lease.renew()
    assert not lease.expired(10**9)


def test_it_ends_so_many_ticks_after_the_next() -> None:
    """The first tick that asks begins the lease, whatever its number."""
    lease = SubgoalLease(10)
    lease.renew()
    assert [lease.expired(t) for t in (500, 509, 510, 511)] == [False, False, True, True]


def test_word_from_the_planner_renews_it() -> None:
    """A renewal begins it anew; a message may set its own length."""
    lease = SubgoalLease(10)
    lease.renew()
    assert not lease.expired(0)
    lease.renew(3)
    assert [lease.expired(t) for t in (9, 11, 12)] == [False, False, True]
