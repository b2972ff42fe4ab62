"""How the pages look: the report's style sheet, and what only pages have."""

from __future__ import annotations

import hashlib

from evaluation.report.words import STYLE

OWN = """
body { max-width: 78rem; padding: 0 1rem 3rem; }
.top { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; align-items: baseline; margin: 0 -1rem 1.5rem;
  padding: .7rem 1rem; border-bottom: 1px solid var(--line); }
.top nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; }
.top a { display: inline-block; padding: .35rem 0; } .top .brand { font-weight: 700; color: var(--ink);
  text-decoration: none; font-size: 1.1rem; }
.top a[aria-current] { color: var(--ink); font-weight: 600; text-decoration: none; border-bottom: 2px solid; }
.crumbs { font-size: .9rem; color: var(--soft); margin: 0; }
h1 { font-size: clamp(1.4rem, 1.1rem + 1.6vw, 2rem); overflow-wrap: anywhere; margin: .3rem 0 1rem; }
h2 { font-size: 1.35rem; overflow-wrap: anywhere; } p, li, dt, dd, caption, summary, label, figcaption {
  overflow-wrap: anywhere; } a, b, td, th, .state { unicode-bidi: isolate; } h3 { font-size: 1.1rem; }
.withnav section:first-of-type > h2 { margin-top: 0; }
.lead { font-size: 1.05rem; max-width: 46rem; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); }
input, button { font: inherit; color: inherit; }
input[type=search] { width: 100%; min-height: 2.75rem; padding: .4rem .7rem; background: var(--card);
  border: 1px solid var(--edge); border-radius: 6px; }
button { min-height: 2.75rem; padding: .4rem 1rem; background: var(--card); border: 1px solid var(--edge);
  border-radius: 6px; cursor: pointer; } button:hover { border-color: var(--link); }
button.main { background: var(--link); color: var(--page); border-color: var(--link); font-weight: 600; }
input:focus-visible, button:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.filter { display: grid; grid-template-columns: 1fr auto; gap: .3rem .6rem; max-width: 46rem; align-items: end; }
.filter label { grid-column: 1 / -1; font-weight: 600; }
.bar { position: sticky; bottom: 0; display: flex; flex-wrap: wrap; gap: .6rem 1rem; align-items: center;
  padding: .7rem 0; background: var(--page); border-top: 1px solid var(--line); }
.bar p { margin: 0; } .count { color: var(--soft); margin: 1.2rem 0 .5rem; }
.runs { list-style: none; padding: 0; margin: 0; max-width: none; display: grid; gap: .75rem; }
.runs li { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1rem;
  display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: .3rem 1rem; }
.runs li:has(input:checked) { border-color: var(--link); box-shadow: inset 3px 0 0 var(--link); }
.runs h2 { margin: 0; padding: 0; border: 0; font-size: 1.1rem; } .runs dl { grid-column: 1 / -1; margin: .3rem 0 0;
  max-width: none; font-size: .925rem; grid-template-columns: minmax(5.5rem, auto) minmax(0, 1fr); }
.runs .when { margin: 0; color: var(--soft); grid-column: 1 / -1; font-size: .925rem; }
.tick { display: inline-flex; gap: .5rem; align-items: center; min-height: 1.75rem; cursor: pointer;
  align-self: start; }
.tick input { width: 1.25rem; height: 1.25rem; accent-color: var(--link); margin: 0; }
.state { font-weight: 600; } .state.warn { color: var(--bad); }
.files a { white-space: nowrap; } .downloads { display: flex; flex-wrap: wrap; gap: .5rem 1.2rem; padding: 0;
  list-style: none; margin: .75rem 0; } .downloads a { display: inline-block; padding: .2rem 0; }
table.paper thead th { white-space: normal; min-width: 5rem; }
td.remarks { text-align: left; white-space: normal; min-width: 18rem; } tr.gold td.remarks { font-weight: 400; }
td .change { display: block; color: var(--soft); } td .change.beyond { color: var(--ink); font-weight: 700; }
.pages { display: flex; gap: 1.5rem; }
.swap { margin: 0 0 -.5rem; }
.two { display: grid; gap: .75rem; margin: 1rem 0; padding: 0; list-style: none; max-width: none; }
.two li { border: 1px solid var(--line); border-radius: 8px; background: var(--card); padding: .7rem 1rem; }
.two b { display: block; color: var(--soft); font-weight: 600; font-size: .9rem; }
.plain { padding-left: 1.2rem; } .plain li { margin: .2rem 0; }
@media (min-width: 44rem) { .two { grid-template-columns: 1fr 1fr; } }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  .runs dl { grid-template-columns: 1fr; } tbody th { max-width: 10rem; white-space: normal; }
  .files a { padding: .6rem 0; display: inline-block; } .words td:last-child { min-width: 9rem; } }
@media (min-width: 70rem) { .withnav { display: grid; grid-template-columns: 12rem minmax(0, 1fr); gap: 2rem; }
  .withnav > nav { position: sticky; top: 0; align-self: start; max-height: 100vh; overflow: auto;
  padding: 1rem 0; font-size: .925rem; } .withnav > nav ol { list-style: none; padding: 0; margin: 0; }
  .withnav > nav li { border-left: 2px solid var(--line); padding-left: .8rem; } }
@media print { .top, .bar, .filter, .contents { display: none; } }
"""
"""CSS; sizes of what one presses are 44 pixels and more, colours are the report's."""
SHEET = STYLE + OWN
MARK = hashlib.sha256(SHEET.encode()).hexdigest()[:12]
"""Part of the sheet's address, so that a browser may keep it for ever."""
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><path fill="#FFD700" stroke="#1a1a1a" '
    'stroke-width="1.5" d="m16 2 4.1 9.3 10.1 1-7.6 6.7 2.2 9.9L16 23.8 7.2 28.9l2.2-9.9L1.8 12.3l10.1-1z"/></svg>'
)
"""The star that is gold in every figure."""
