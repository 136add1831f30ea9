#include "prof/page.h"

static const char common[] =
    ":root{color-scheme:light dark;--page:#fff;--card:#f6f8fa;--ink:#1f2328;--soft:#59636e;"
    "--line:#d1d9e0;--grid:#e4e8ec;--c0:#0969da;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;"
    "--c4:#bf3989;--c5:#57606a;--good:#1a7f37;--bad:#bc4c00}\n"
    "@media(prefers-color-scheme:dark){:root{--page:#0d1117;--card:#151b23;--ink:#e6edf3;"
    "--soft:#9198a1;--line:#3d444d;--grid:#262c36;--c0:#58a6ff;--c1:#f0883e;--c2:#3fb950;"
    "--c3:#bc8cff;--c4:#f778ba;--c5:#9198a1;--good:#3fb950;--bad:#f0883e}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;max-width:1200px;padding:24px 16px 64px;background:var(--page);"
    "color:var(--ink);font:15px/1.5 system-ui,-apple-system,\"Segoe UI\",sans-serif}\n"
    "h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:0}\n"
    ".note{color:var(--soft);margin:2px 0 10px;font-size:14px}\n"
    "section{background:var(--card);border:1px solid var(--line);border-radius:8px;"
    "padding:16px;margin:16px 0;min-width:0}\n"
    ".scroll{overflow-x:auto}\n"
    "svg{display:block;width:100%;min-width:520px;height:auto}\n"
    "svg text{font:12px system-ui,sans-serif;fill:var(--soft)}\n"
    "svg .strong{fill:var(--ink)}\n"
    ".facts{display:flex;flex-wrap:wrap;gap:8px 28px;margin:12px 0}\n"
    ".facts div{font-size:14px;color:var(--soft)}.facts b{display:block;font-size:19px;"
    "color:var(--ink);font-variant-numeric:tabular-nums}\n"
    "table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}\n"
    "th,td{text-align:right;padding:4px 8px;border-bottom:1px solid var(--grid);"
    "white-space:nowrap}\n"
    "th{color:var(--soft);font-weight:600;border-bottom-color:var(--line)}\n"
    "th.l,td.l{text-align:left}\n"
    "tbody tr:hover{background:var(--grid)}\n";

void cup__page_begin(cup__text *out, const char *title, const char *style)
{
    cup__text_add(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                       "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                       "<title>");
    cup__text_add_markup(out, title);
    cup__text_add(out, "</title>\n<style>\n%s%s</style></head>\n<body>\n<h1>", common, style);
    cup__text_add_markup(out, title);
    cup__text_add(out, "</h1>\n");
}

void cup__page_end(cup__text *out)
{
    cup__text_add(out, "</body></html>\n");
}
