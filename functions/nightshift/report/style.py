"""The style sheet of the report: light and dark by the reader's setting, narrow screens, and paper."""

LIGHT = """
--paper:#ffffff;--ink:#1b1f24;--soft:#57606a;--rule:#d5dae0;--panel:#f5f7f9;--code:#eef1f4;
--s0:#1f5fbf;--s1:#b4540a;--s2:#1a7441;--s3:#7a3fb0;--band:rgba(31,95,191,.13);
--good:#1a7441;--bad:#b42318;--warn:#8a5a00;--before:#6b7480;--link:#1f5fbf;
"""

DARK = """
--paper:#14171c;--ink:#e6e9ee;--soft:#a3adb9;--rule:#343b45;--panel:#1c2128;--code:#232a33;
--s0:#79aefc;--s1:#f0a35c;--s2:#62cd90;--s3:#c69af3;--band:rgba(121,174,252,.17);
--good:#62cd90;--bad:#ff8f84;--warn:#e3b341;--before:#8f9aa7;--link:#8ab8ff;
"""

CSS = (
    ":root{color-scheme:light;"
    + LIGHT
    + "}\n@media screen and (prefers-color-scheme:dark){:root{color-scheme:dark;"
    + DARK
    + "}}\n"
    + """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main,header,footer{max-width:960px;margin:0 auto;padding:0 24px}
header{padding-top:36px}
footer{padding-bottom:48px;color:var(--soft);font-size:14px}
h1{font-size:30px;line-height:1.2;margin:4px 0 8px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:20px;margin:40px 0 12px;padding-top:16px;border-top:1px solid var(--rule)}
h3{font-size:16px;margin:24px 0 4px}.card h3{margin-top:0}
p{margin:8px 0}
a{color:var(--link)}
.run{color:var(--soft);font-size:15px;overflow-wrap:anywhere}
.state{display:inline-block;border:1px solid currentColor;border-radius:999px;padding:0 10px;margin-right:8px;
font-size:14px;font-weight:600}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.lead{font-size:18px}
.note-text,.empty{color:var(--soft);font-size:15px}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px 24px;margin:20px 0 0}
.facts div{min-width:0}.facts div:first-child{grid-column:span 2}
dt{color:var(--soft);font-size:13px}
dd{margin:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:16px;margin-top:24px}
.card{background:var(--panel);border:1px solid var(--rule);border-radius:10px;padding:16px 18px;min-width:0}
.big{font-size:32px;line-height:1.25;font-weight:650;font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.big .from{color:var(--soft);font-weight:450}
.big .arrow{color:var(--soft);padding:0 6px;font-weight:400}
.row{display:grid;grid-template-columns:72px 1fr;gap:0 8px;align-items:center;font-size:14px;margin-top:6px}
.row .figures{grid-column:2;color:var(--soft);font-variant-numeric:tabular-nums}
figure{margin:0}
figcaption{font-size:14px;color:var(--soft)}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--ink)}
svg .tick,svg .label{fill:var(--soft)}
svg .note{fill:var(--ink);paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
.grid{stroke:var(--rule);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
.band{fill:var(--band)}
.target{stroke:var(--good);stroke-width:1.5;stroke-dasharray:7 4}
.ceiling{stroke:var(--soft);stroke-width:1.5;stroke-dasharray:2 3}
.recovery{stroke:var(--warn);stroke-width:1.5;stroke-dasharray:4 3}
.stroke{stroke-width:2.5;stroke-linecap:round}
.stroke.s0{stroke:var(--s0)}.stroke.s1{stroke:var(--s1)}.stroke.s2{stroke:var(--s2)}.stroke.s3{stroke:var(--s3)}
.mark{stroke-width:2;stroke:var(--paper)}
.mark.s0{fill:var(--s0)}.mark.s1{fill:var(--s1)}.mark.s2{fill:var(--s2)}.mark.s3{fill:var(--s3)}
.mark.lost{fill:var(--paper)}
.mark.lost.s0{stroke:var(--s0)}.mark.lost.s1{stroke:var(--s1)}
.mark.lost.s2{stroke:var(--s2)}.mark.lost.s3{stroke:var(--s3)}
.curve.narrow{display:none}
.track{stroke:var(--rule);stroke-width:2}
.range{stroke-width:6;stroke-linecap:round}
.range.before{stroke:var(--before);opacity:.55}.range.after{stroke:var(--s0);opacity:.55}
.dot.before{fill:var(--before)}.dot.after{fill:var(--s0)}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;list-style:none;margin:8px 0 0;padding:0;font-size:14px}
.legend li{display:flex;align-items:center;gap:8px}
svg.key{width:30px;height:16px;flex:none}
.scroll{overflow-x:auto}
.scroll:focus-visible,summary:focus-visible,a:focus-visible{outline:2px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding-bottom:6px}
th,td{text-align:left;vertical-align:top;padding:7px 14px 7px 0;border-bottom:1px solid var(--rule)}
th{font-weight:600}
thead th{color:var(--soft);font-weight:500;font-size:13px;vertical-align:bottom}
.number{text-align:right}
.when{white-space:nowrap}
.day,.time{display:block}
td.message{min-width:0;padding-top:0;color:var(--soft);overflow-wrap:anywhere}
tr.more th,tr.more td{border-bottom:0;padding-bottom:2px}
.pairs th{width:170px;font-weight:500;color:var(--soft)}
.pairs td,.objects .id{overflow-wrap:anywhere}
.node{white-space:nowrap}
code,pre,.digest{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.digest{overflow-wrap:anywhere;color:var(--soft)}
pre{background:var(--code);border-radius:8px;padding:12px 14px;margin:8px 0 16px;white-space:pre-wrap;
overflow-wrap:anywhere}
ol.story,ul.story{padding-left:22px;margin:8px 0 16px}
details summary{cursor:pointer;color:var(--link);margin:8px 0}
@media (max-width:600px){
main,header,footer{padding-left:16px;padding-right:16px}
header{padding-top:20px}
h1{font-size:24px}.big{font-size:26px}
.row .figures{grid-column:1/-1}
.curve.wide{display:none}.curve.narrow{display:block}
.pairs th,.pairs td{display:block;width:auto;padding-right:0}
.pairs th{border-bottom:0;padding-bottom:0}.pairs td{padding-top:0}
.objects thead{position:absolute;clip-path:inset(50%);height:1px;overflow:hidden}
.objects tr{display:block;border-bottom:1px solid var(--rule);padding:6px 0}
.objects th,.objects td{display:block;border:0;padding:0}
.objects .number{text-align:left}
}
@media print{
body{font-size:11pt}
main,header,footer{max-width:none;padding:0}
header{padding-top:0}
h2,h3,caption{break-after:avoid}
.card,figure,tr,pre{break-inside:avoid}
.card{background:none}
.scroll{overflow:visible}
a{color:inherit;text-decoration:none}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
}
"""
)
