"""What every report says and how it looks: the words on how to read it, and its style sheet."""

READ = """
<p>A federation trained a model (the <b>original</b>), then was asked to forget some of the records. Doing it
properly means to train again without them: that model is called <b>retrain</b>, or gold. It is exact and slow.
Every other model took a short cut, and the one question is how near to gold the short cut ends.</p>
<ul>
<li><b>Read every number by its distance from gold</b>, never by itself. A model that knows less of the forgotten
records than gold does has not forgotten better: it was damaged.</li>
<li><b>Before recovery</b> is the model right after the forgetting step; <b>after recovery</b> it was trained a few
rounds more on what stays, gold too, so that each is read against its own gold. <b>fine-tuning</b> is recovery
alone, without a forgetting step: a method has to beat it.</li>
<li><b>forget, retain, test</b>: how the model does on records of the kind it should forget, on the kind it should
keep, and on all held-out ones. <b>MIA AUC</b>: an attacker's chance to tell a forgotten record from one never seen;
the aim is gold's value, not 0.5. <b>L2</b> and <b>KL</b>: distance from gold of the weights and of the answers; 0
is gold.</li>
<li><b>Where the original is as near to gold as the methods are, the request was too easy</b> to tell them
apart.</li>
<li><b>ok</b> means that a method ran to its end. <b>diverged</b>: its numbers ran away, and what is shown is the
last usable model. <b>not applicable</b>: it cannot answer this kind of request. Each reason is given below its
table.</li>
<li>Nothing here proves that a record was forgotten, and nothing is for clinical use.</li>
</ul>"""
"""HTML."""
STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #55504a; --page: #fdfcfa; --card: #fff;
  --shade: #00000026; --line: #d5d0c8; --edge: #857d72; --gold: #fff3c4; --bad: #9b1c1c; --link: #0a4f96; }
@media (prefers-color-scheme: dark) { :root { --ink: #ece8e1; --soft: #cac3b8; --page: #171614; --card: #1f1d1a;
  --shade: #ffffff2b; --line: #45413b; --edge: #8f887c; --gold: #332c0e; --bad: #ffb3ab; --link: #8ec5ff; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; } @media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body { margin: 0 auto; padding: 1rem; max-width: 66rem; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
p, ul, dl, figcaption { max-width: 46rem; }
h1 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 2px solid var(--line); padding-top: 1rem; line-height: 1.25;
  }
h3 { margin-top: 2rem; }
a { color: var(--link); } a:focus-visible, summary:focus-visible, .scroll:focus-visible {
  outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; top: 1rem; background: var(--page);
  padding: .5rem; }
nav ol { padding-left: 1.4rem; }
nav li { padding: .2rem 0; line-height: 1.4; }
.jumps ul { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; list-style: none; padding: 0; margin: .75rem 0; }
dl { display: grid; grid-template-columns: minmax(7rem, auto) 1fr; gap: .25rem 1rem; } dt { color: var(--soft); }
dd { margin: 0; }
.scroll { overflow-x: auto; margin: 1rem 0; border: 1px solid var(--line); border-radius: 6px; background:
  linear-gradient(to right, var(--card) 30%, transparent) 0 / 2.5rem 100% local no-repeat,
  linear-gradient(to left, var(--card) 30%, transparent) 100% / 2.5rem 100% local no-repeat,
  linear-gradient(to right, var(--shade), transparent) 0 / .9rem 100% scroll no-repeat,
  linear-gradient(to left, var(--shade), transparent) 100% / .9rem 100% scroll no-repeat, var(--card); }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; width: 100%; }
caption { text-align: left; font-weight: 600; padding: .6rem; position: sticky; left: 0;
  max-width: calc(100vw - 3rem); }
th, td { padding: .35rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--ink); }
th[scope=row], .words td, .words th { text-align: left; } .words td:last-child { white-space: normal;
  min-width: 16rem; }
td.text, th.text { text-align: left; } td.text:last-child { white-space: normal; min-width: 22rem; }
thead th:first-child { text-align: left; }
.verdict { border-left: 4px solid var(--line); padding: 0 1rem; margin: 1rem 0; } .verdict p { font-weight: 600; }
tbody th { font-weight: 500; position: sticky; left: 0; background: var(--card); }
tbody tr:last-child > * { border-bottom: 0; }
tr.gold th, tr.gold td { background: var(--gold); font-weight: 700; } tr.bad td:last-child { color: var(--bad);
  font-weight: 700; }
.delta, .note { color: var(--soft); } .note { font-size: .9rem; }
figure { margin: 2rem 0; } .picture { max-width: 46rem; overflow-x: auto; background: #fff; padding: .5rem;
  border: 1px solid var(--line); border-radius: 4px; }
.picture img { display: block; width: 100%; min-width: 30rem; height: auto; }
summary { cursor: pointer; padding: .4rem 0; }
code { overflow-wrap: anywhere; }
@media print { details::details-content { content-visibility: visible; }
  h2 { break-before: page; } figure, tr { break-inside: avoid; } }
"""
"""CSS: ink on paper in the light and the other way round in the dark, contrast 7:1 and more for text."""
