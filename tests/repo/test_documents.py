"""Links and images in the documents lead somewhere."""

from repo_checks.documents import dead_links


def test_no_dead_links(root):
    """Every relative link, image and heading that a document points at is there."""
    assert dead_links(root) == []


def test_dead_links_are_found(plant):
    """Planted: a missing file, image, HTML image, heading; sound ones and code are left alone."""
    tree = plant(
        {
            'README.md': '# One two\n[a](docs/a.md) [b](docs/none.md) ![c](none.png)\n'
            '<img src="none.svg">\n[d](#one-two) [e](docs/a.md#none) [f](docs/a.md#three)\n'
            '[g](https://example.com/none)\n```\n[h](none.md)\n```\n',
            'docs/a.md': '## Three\n[up](../README.md)\n',
        }
    )
    assert [fault.split(': ')[1] for fault in dead_links(tree)] == [
        'docs/none.md',
        'none.png',
        'none.svg',
        'docs/a.md#none',
    ]
