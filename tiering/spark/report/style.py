"""Style: how a page looks, in one sheet that the page carries itself.

The idea: ink on paper, hairlines, figures of one width; colours mean something (a tier, a topic, a
percentile) or are not there. By night the same colours are lighter; on paper the day's are used.

Invariant: nothing is fetched: no fonts, no images.
"""

from __future__ import annotations

from typing import Final

_DAY: Final = """
--paper:#fff;--ink:#1c2126;--soft:#5a646e;--line:#e4e7eb;--rule:#b9c0c8;--wash:#f5f7f9;
--hot:#c4513d;--warm:#dca136;--cold:#2f709f;
--c0:#3a6ea5;--c1:#d4872f;--c2:#3f9a78;--c3:#b05a84;--c4:#7566b5;--c5:#8d8b45;--rest:#a9b1ba;
--p50:#174a6e;--p90:#3d86b8;--p99:#9cc4de;--dead:#a8455f
"""
_NIGHT: Final = """
--paper:#14171a;--ink:#e6e9ec;--soft:#98a2ad;--line:#272d33;--rule:#4a535c;--wash:#1b1f23;
--hot:#e27a66;--warm:#e8b95c;--cold:#64a5d4;
--c0:#6c9fd4;--c1:#e5a55b;--c2:#62b998;--c3:#d183a9;--c4:#9c8fd8;--c5:#b7b46a;--rest:#6b747d;
--p50:#cfe6f6;--p90:#6db0dd;--p99:#35688c;--dead:#d9798f
"""
_COLOURS: Final = (
    "hot", "warm", "cold", "c0", "c1", "c2", "c3", "c4", "c5", "rest", "p50", "p90", "p99", "dead",
)  # fmt: skip
_SHEET: Final = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
 font-variant-numeric:tabular-nums}
main{max-width:1024px;margin:0 auto;padding:40px 28px 56px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:19px;margin:0 0 2px;letter-spacing:-.005em}
h3{font-size:14px;margin:26px 0 8px}
p{margin:0 0 14px;max-width:78ch;text-wrap:pretty}
.lead,.note,figcaption,.empty{color:var(--soft)}
.note,figcaption{font-size:13px}
.empty{border:1px dashed var(--rule);border-radius:6px;padding:14px 16px;max-width:none}
section{margin-top:48px;border-top:1px solid var(--rule);padding-top:18px}
dl.head{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:22px 20px;
 margin:30px 0 0;padding:22px 0 0;border-top:2px solid var(--ink)}
dl.head div{display:flex;flex-direction:column}
dl.head dt{font-size:13px;color:var(--soft)}
dl.head dd{margin:0;font-size:25px;line-height:1.3;font-weight:600;letter-spacing:-.015em;
 white-space:nowrap}
dl.head dd+dd{font-size:13px;font-weight:400;color:var(--soft);letter-spacing:0;white-space:normal}
figure{margin:16px 0 6px}
.scroll{overflow-x:auto}
svg{display:block;overflow:visible;font:11.5px system-ui,-apple-system,"Segoe UI",Roboto,Arial,
 sans-serif;font-variant-numeric:tabular-nums}
svg.plot{width:100%;height:auto}
figure.wide svg.plot{min-width:780px}
svg .grid{stroke:var(--line)}svg .axis{stroke:var(--rule)}
svg .tick{fill:var(--soft)}svg .mid{text-anchor:middle}svg .end{text-anchor:end}
svg path{fill:none}svg path.line{stroke-width:1.7;stroke-linejoin:round}
svg path.area{opacity:.16;stroke:none}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(250px,1fr));gap:20px 26px;
 margin:14px 0}
.panels figure{margin:0;min-width:0}.panels svg.plot{max-width:380px}
.panels h4{display:flex;gap:8px;margin:0 0 2px;font-size:13px;white-space:nowrap}
.panels h4 b{overflow:hidden;text-overflow:ellipsis}
.panels h4 span{font-weight:400;color:var(--soft)}
ul.legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:0 0 10px;padding:0;
 font-size:13px}
ul.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
table{border-collapse:collapse;width:100%;font-size:14px;margin:8px 0 4px}
caption{text-align:left;font-weight:600;padding:12px 0 4px}
th{font-weight:500;font-size:12.5px;color:var(--soft);vertical-align:bottom;
 border-bottom:1px solid var(--rule)}
th,td{padding:5px 0 5px 18px;text-align:right;white-space:nowrap}
th:first-child,td:first-child{padding-left:0}
td{border-bottom:1px solid var(--line)}
th.text,td.text{text-align:left}
td.text{white-space:normal;overflow-wrap:anywhere;min-width:8em}
tr.sum td{border-top:1px solid var(--rule);border-bottom:0;font-weight:600}
td.rest{color:var(--soft)}
td small{color:var(--soft);font-size:12px}
th.plot,td.plot{text-align:left;padding-left:26px;width:1%}
footer{margin-top:44px;border-top:1px solid var(--rule);padding-top:14px}
@media(max-width:640px){main{padding:24px 16px 40px}h1{font-size:22px}
 dl.head{grid-template-columns:1fr 1fr;gap:18px 14px}dl.head dd{font-size:21px}
 section{margin-top:36px}}
@media print{body{font-size:10.5pt}main{max-width:none;padding:0}
 section{break-inside:auto}figure,tr,dl,.panels figure{break-inside:avoid}
 h2,h3,h4,ul.legend{break-after:avoid}.scroll{overflow:visible}figure.wide svg.plot{min-width:0}
 *{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""


def sheet() -> str:
    """The whole style sheet."""
    fills = "".join(
        f"svg .{one}{{fill:var(--{one})}}svg path.line.{one}{{stroke:var(--{one});fill:none}}"
        f"i.{one}{{background:var(--{one})}}"
        for one in _COLOURS
    )
    night = f"@media screen and (prefers-color-scheme:dark){{:root{{{_NIGHT.strip()}}}}}"
    return f":root{{color-scheme:light dark;{_DAY.strip()}}}\n{night}{_SHEET}{fills}\n"
