"""The building blocks of instructions: order words, politeness, pronouns, repeats, what not to do.

Every block stands in a table whose entries are trained, or, marked with ``!``, held out. Held-out
blocks use words that trained ones use, in an order that was never seen.
"""

from __future__ import annotations

from functools import cache

# {b} base form, {g} gerund, {p} participle of a step; {x} is a step that must not be done.
OPENERS = (
    '', '', '', 'first ', 'first, ', 'first of all ', 'first of all, ', 'to begin with, ',
    'to start, ', 'start by {g}', 'begin by {g}', 'begin with {g}', '!start with {g}',
    '!at first ',
)  # fmt: skip
JOINS = (
    ', then ', ', then ', ' then ', ' and then ', ', and then ', '; ', '; then ', '. then ',
    '. then, ', ', after that ', '. after that, ', '. after that ', ', next ', '. next, ',
    '. next ', ', afterwards ', '. afterwards, ', ' and afterwards ', ', and after that ',
    ' and next ', '. when that is done, ', '. when you are done, ', ', followed by {g}', '. now ',
    ', second ', '. second, ', ' and ', ', and ', ', ', '. ', '!; after that ', '!. and then ',
    '!; next, ', '!; afterwards ', '!. when that is done, then ', '!, and next ',
)  # fmt: skip
LASTS = (
    ', and finally ', ', finally ', '. finally, ', '. finally ', ' and finally ', ', lastly ',
    ', and lastly ', '. last of all, ', ', and in the end ', '. in the end, ', ', and at last ',
    ' and last ', ', and to finish, ', ', finishing by {g}', '!. and finally, ', '!; in the end ',
    '!, last of all ', '!; finally ',
)  # fmt: skip
# The first two steps as one clause; "1" comes first.
PAIRS = (
    '{b2} after {g1}', 'after {g1}, {b2}', 'after {g1} {b2}', 'before {g2}, {b1}',
    'before {g2} {b1}', '{b1} before {g2}', 'once you have {p1}, {b2}',
    'after you have {p1}, {b2}', '{b2} once you have {p1}', '{b1} before you {b2}',
    'before you {b2}, {b1}', '{b2}, but first {b1}', '{b2}, but before that {b1}',
    '{b2}, but {b1} first', '{b2}. before that, {b1}', '{b1}, and only then {b2}',
    '{b2}, but only after {g1}', 'as soon as you have {p1}, {b2}', 'when you have {p1}, {b2}',
    '{b2} when you have {p1}', '!{b2} after you have {p1}', '!{b2}; before that, {b1}',
    '!{b2}. but first {b1}', '!once you have {p1} {b2}', '!{b2}, but only once you have {p1}',
    '!as soon as you are done {g1}, {b2}',
)  # fmt: skip
NUMBERS = ('{n}. ', '{n}) ', 'step {n}: ', '{n}: ', '!step {n}. ')
ORDINALS = ('one', 'two', 'three', 'four', 'five', 'six')
TWICE = ('{b} twice', '{b} two times', '{b} and then do it again', '{b}, then do that again',
         '!{b}, and then do that again')  # fmt: skip
# Around a whole request that begins with a verb.
WRAPS = (
    '{}', '{}', '{}', 'please {}', 'please, {}', 'could you {}', 'could you please {}',
    'can you {}', 'can you please {}', 'would you {}', 'would you please {}', 'i want you to {}',
    'i would like you to {}', 'i need you to {}', 'we need you to {}', 'you should {}',
    'you must {}', 'you have to {}', 'kindly {}', 'your job is to {}', 'your task is to {}',
    'go ahead and {}', 'try to {}', 'it would be nice if you could {}', 'now {}', 'let us {}',
    'be so kind as to {}', 'i ask you to {}', 'the plan is to {}', 'it is time to {}',
    '!we would like you to {}', '!can you kindly {}', '!you need to {}', '!it is your job to {}',
    '!i ask you to please {}',
)  # fmt: skip
FRONTS = (
    '', '', '', '', '', '', 'robot, ', 'robot: ', 'hey robot, ', 'hey, ', 'ok, ', 'ok robot, ',
    'task: ', 'listen: ', 'good morning. ', 'hello. ', 'hello robot, ', 'here is what i need: ',
    'i am in a hurry. ', 'the room is a mess. ', 'it is cold in here. ', 'my hands are full. ',
    'we are almost done for today. ', 'there is not much time. ', 'here is the plan: ',
    'this is what you do: ', 'listen, robot: ', '!hello, ', '!ok, here is the plan: ',
    '!good morning, robot. ', '!hey robot. i am in a hurry. ',
)  # fmt: skip
BACKS = (
    '', '', '', '', '', '', '.', '.', '!', ', please', ' please.', ', thank you.', '. thank you.',
    ' for me', ' for me, please', '. that is all.', '. take your time.', '. be careful.',
    '. nothing else.', '. i will be back soon.', ', will you?', ' right now', ' now', ', ok?',
    '. do it slowly.', '. and be careful.', '!. please take your time.', '! thank you.',
    '!. that is all for now.', '! for me, thank you.',
)  # fmt: skip
NOTS_BEFORE = (
    'do not {x}. ', "don't {x}. ", 'do not {x}, just ', "don't {x}, ", 'instead of {gx}, ',
    'rather than {gx}, ', 'without {gx}, ', 'never {x}. ', 'you must not {x}. ',
    'there is no need to {x}, just ', '!do not {x}; ', "!don't {x}; just ",
    '!you must never {x}. ',
)  # fmt: skip
NOTS_AFTER = (
    ', but do not {x}', ", but don't {x}", '. do not {x}', ". don't {x}", ', and do not {x}',
    ' without {gx}', ', but never {x}', '. never {x}', ', but you must not {x}', '; do not {x}',
    ', and there is no need to {x}', ' instead of {gx}', ' rather than {gx}', "!; don't {x}",
    '!, and never {x}', '!. you must not {x}',
)  # fmt: skip
NOTS_ALONE = ('do not {x}', "don't {x}", 'never {x}', 'you must not {x}', '!please do not {x}')


@cache
def parts(table: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the entries that are trained, and those that are held out."""
    marked = [entry for entry in table if len(entry) > 1 and entry[0] == '!']
    return [entry for entry in table if entry not in marked], [entry[1:] for entry in marked]
