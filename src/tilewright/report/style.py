"""The style sheet of the page: for light and dark settings, for wide and narrow screens, and for print.

The marks have the colours of Okabe and Ito (2008), which people with any colour vision can tell apart.
"""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --panel: #f6f7f9; --line: #d9dde3; --text: #1b1f24; --soft: #59636e;
  --keep: #00629b; --revert: #6e7781; --crash: #b64400; --roof: #1b1f24;
  --added: #dafbe1; --removed: #ffebe9; --hunk: #ddf4ff;
  --mix0: #0072b2; --mix1: #e69f00; --mix2: #009e73; --mix3: #cc79a7;
  --mix4: #56b4e9; --mix5: #d55e00; --mix6: #e3d400; --mix7: #9aa1a9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1419; --panel: #181e25; --line: #343c46; --text: #e6e9ed; --soft: #9aa5b1;
    --keep: #56b4e9; --revert: #9aa5b1; --crash: #ff8c42; --roof: #e6e9ed;
    --added: #12351f; --removed: #45191c; --hunk: #14304a;
    --mix0: #3b9bd6; --mix7: #77808b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 24px 20px 64px; max-width: 1120px; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: break-word;
}
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 1.2rem; margin: 40px 0 10px; padding-bottom: 4px; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 16px 0 6px; }
p { margin: 6px 0; } h1, h2, h3, p, li, .tile b { overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.outcome { font-size: 1.1rem; margin: 16px 0 6px; }
.badge {
  display: inline-block; padding: 0 8px; border: 1px solid currentColor; border-radius: 10px; font-size: .8rem;
  font-weight: 600; white-space: nowrap;
}
.badge.keep { color: var(--keep); } .badge.revert { color: var(--revert); }
.badge.crash, .badge.predicted, .badge.lossy { color: var(--crash); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 18px 0; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .85rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 28px; }
.scroll { overflow-x: auto; } .scroll:focus-visible { outline: 2px solid var(--keep); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; font-size: .85rem; }
td.number, th.number { text-align: right; white-space: nowrap; }
.nowrap { white-space: nowrap; }
tr.more td { padding-top: 0; } tr.head td { border-bottom: 0; }
table.plain th { width: 14rem; font-weight: 400; }
table.plain th, table.plain td, td:last-child, td:nth-child(2), td > strong, td > .soft { overflow-wrap: anywhere; }
details { margin: 2px 0 8px; } tr.more details { contain: inline-size; }
summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
details > div { margin: 8px 0 8px 14px; } details .scroll { margin: 8px 0 14px; }
pre {
  margin: 8px 0; padding: 10px 12px; overflow-x: auto; background: var(--panel); border: 1px solid var(--line);
  border-radius: 6px; font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
}
pre.diff { padding: 8px 0; } pre.diff > code { display: block; width: max-content; min-width: 100%; }
pre.diff span { display: block; padding: 0 12px; min-height: 1.45em; }
.added { background: var(--added); } .removed { background: var(--removed); } .hunk { background: var(--hunk); }
svg { display: block; width: 100%; height: auto; }
svg.wide { min-width: 640px; } svg.narrow { min-width: 340px; max-width: 720px; } svg.race { max-width: 600px; }
svg text { fill: var(--text); font: 13px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
svg .tick { fill: var(--soft); font-size: 12px; } svg .axis { font-size: 12.5px; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .baseline { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 6 4; fill: none; }
svg .incumbent { stroke: var(--keep); stroke-width: 1.5; fill: none; opacity: .55; }
svg .point { fill: none; stroke-width: 2; }
svg .point.keep { stroke: var(--keep); } svg .point.keep circle { fill: var(--keep); }
svg .point.revert { stroke: var(--revert); } svg .point.revert circle { fill: var(--page); }
svg .point.crash { stroke: var(--crash); }
svg .cap, svg .interval { stroke-width: 1.5; }
svg .racer { stroke: var(--revert); stroke-width: 2; fill: var(--page); }
svg .racer.winner { stroke: var(--keep); } svg .racer.winner .median { fill: var(--keep); }
svg .racer text { stroke: var(--page); stroke-width: 3px; paint-order: stroke; }
svg .racer rect { stroke: inherit; stroke-width: 2; } svg .band { fill: var(--hunk); }
svg .entry { stroke: none; font-size: 12px; font-weight: 600; }
svg .roof { stroke: var(--roof); stroke-width: 2; fill: none; }
svg .moved { stroke: var(--soft); stroke-width: 1.5; }
svg .before { fill: var(--page); stroke: var(--revert); stroke-width: 2; }
svg .after { fill: var(--keep); stroke: var(--keep); stroke-width: 2; }
svg rect { stroke: var(--page); stroke-width: 1; }
svg .mix0 { fill: var(--mix0); } svg .mix1 { fill: var(--mix1); } svg .mix2 { fill: var(--mix2); }
svg .mix3 { fill: var(--mix3); } svg .mix4 { fill: var(--mix4); } svg .mix5 { fill: var(--mix5); }
svg .mix6 { fill: var(--mix6); } svg .mix7 { fill: var(--mix7); }
ul.key { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 0; font-size: .85rem; }
ul.key svg { display: inline-block; width: 12px; margin-right: 6px; vertical-align: -1px; }
[data-ledger]:hover::after {
  content: "ledger:\\A" attr(data-ledger); white-space: pre; position: fixed; right: 12px; bottom: 12px; z-index: 1;
  max-width: 90vw; max-height: 40vh; overflow: hidden; padding: 6px 10px; text-align: left; border-radius: 6px;
  border: 1px solid var(--line); background: var(--panel); color: var(--soft); font: 12px/1.4 ui-monospace, monospace;
}
@media (max-width: 720px) {
  body { padding: 16px 14px 48px; }
  table.iterations > thead, table.stacked > thead { display: none; }
  table.iterations, table.iterations > tbody, table.iterations > tbody > tr, table.iterations > tbody > tr > td,
  table.stacked, table.stacked > tbody, table.stacked > tbody > tr, table.stacked > tbody > tr > td {
    display: block; width: auto; min-width: 0; max-width: none;
  }
  table.iterations > tbody > tr.head { padding-top: 10px; }
  table.iterations > tbody > tr > td, table.stacked > tbody > tr > td {
    border: 0; padding: 1px 0; text-align: left; white-space: normal; overflow-wrap: anywhere;
  }
  table.iterations > tbody > tr.more, table.stacked > tbody > tr { border-bottom: 1px solid var(--line); }
  table.stacked > tbody > tr { padding: 8px 0; }
  table.plain, table.plain > tbody, table.plain > tbody > tr, table.plain th, table.plain td { display: block; }
  table.plain th { border: 0; padding: 6px 0 0; width: auto; } table.plain td { padding: 0 0 6px; }
  .nowrap { white-space: normal; }
  td[data-label]::before { content: attr(data-label) ": "; color: var(--soft); }
}
@media print { details > div { display: block; } svg.wide, svg.narrow { min-width: 0; } body { max-width: none; } }
"""
