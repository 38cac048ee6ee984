"""The style sheet of a report: light and dark, for phones and wide screens."""

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1f24; --soft: #5b6570;
  --rule: #d7dce1; --tile: #f4f6f8; --bad: #b3261e; --good: #1a6b3c; --busy: #0b5cad;
  --line-0: #0072b2; --line-1: #d55e00; --line-2: #009e73; --line-3: #cc79a7; --line-4: #8a6d00;
  --line-5: #56b4e9; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e4e8ec; --soft: #9aa5b1;
  --rule: #343b43; --tile: #1e2329; --bad: #ff8a80; --good: #7ddaa0; --busy: #8ec5ff;
  --line-0: #4aa8e0; --line-1: #ff8a3d; --line-2: #35c79b; --line-3: #e6a3c8; --line-4: #d6b84a;
  --line-5: #9bd4f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 84rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.5rem; padding-top: 0.75rem;
  border-top: 2px solid var(--rule); overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.5rem 0 0.5rem; }
p { max-width: 48rem; margin: 0.5rem 0; }
.soft, figcaption, caption { color: var(--soft); font-size: 0.875rem; }
.failed { color: var(--bad); } .finished { color: var(--good); } .running { color: var(--busy); }
.tiles { display: grid; gap: 0.5rem; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr));
  margin: 0.75rem 0; padding: 0; }
.tiles div { background: var(--tile); border-radius: 0.375rem; padding: 0.5rem 0.75rem; }
.tiles dt { color: var(--soft); font-size: 0.8125rem; }
.tiles dd { margin: 0; font-size: 1.125rem; font-variant-numeric: tabular-nums; }
.figures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); }
figure { margin: 0; max-width: 34rem; } svg { display: block; width: 100%; height: auto; }
.legend { max-width: 34rem; }
.scroll { overflow-x: auto; max-width: 100%; } .tall { max-height: 28rem; overflow: auto; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: 0.25rem; }
th, td { text-align: left; padding: 0.25rem 0.75rem 0.25rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
.tall th { position: sticky; top: 0; background: var(--page); }
.number { text-align: right; white-space: nowrap; }
ul { margin: 0.5rem 0; padding-left: 1.25rem; max-width: 60rem; }
details { margin: 1rem 0; } summary { cursor: pointer; font-weight: 600; }
code { font-size: 0.875em; }
@media print { details > * { display: block; } .tall { max-height: none; } }
"""
