"""Pictures as SVG: boxes, lines and words on a panel of their own, readable in light and dark.

Scripts beside this one draw with it; each has ``draw()``, which returns the text of a picture made
from real objects. `docs/draw_pictures.py` writes them all.
"""

from html import escape

STYLE = """
.panel, .box { fill: #ffffff } .line { fill: none } .box, .line { stroke: #6e7781 }
text { fill: #1f2328; font: 13px system-ui, sans-serif }
.head { font-weight: 600 } .small { font-size: 11px } .mono { font: 12px ui-monospace, monospace }
.free { fill: #f0f2f4 } .one { fill: #cfe3ff } .two { fill: #ffdfb8 } .both { fill: #cdeccd }
.kept { fill: #e6dcfa } .null { fill: #d0d7de }
@media (prefers-color-scheme: dark) {
.panel, .box { fill: #1b1e25 } .box, .line { stroke: #9198a1 }
text { fill: #e8eaed }
.free { fill: #2c313a } .one { fill: #1d4b86 } .two { fill: #774a14 } .both { fill: #1f5c31 }
.kept { fill: #4d3a80 } .null { fill: #59616c } }
"""


class Picture:
    """A panel of so many units; every mark names its place and one of the classes of `STYLE`."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size, self._title = (width, height), title
        self._marks = [f'<rect class="panel" width="{width}" height="{height}" rx="6"/>']

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, words: str = ""
    ) -> None:
        """A box, with words in its middle."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self._marks.append(f'<rect class="box {kind}" {place} rx="2"/>')
        if words:
            self.text(x + width / 2, y + height / 2 + 4, words, "mono", "middle")

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """A line of words, on its baseline."""
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self._marks.append(f'<text class="{kind}" {place}>{escape(words)}</text>')

    def line(self, *points: tuple[float, float]) -> None:
        """A line through points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._marks.append(f'<polyline class="line" points="{path}"/>')

    def render(self) -> str:
        """The picture as the text of a file."""
        width, height = self._size
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        title = f"<title>{escape(self._title)}</title>"
        return "\n".join([head, title, f"<style>{STYLE}</style>", *self._marks, "</svg>\n"])
