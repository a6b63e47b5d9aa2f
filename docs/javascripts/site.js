/* Tables that a phone can read: site.css shows each row of a wide one (three columns and more) as a card, whose cells
   say which column they are of. Long names in tables may break behind a sign, and so never within a word. */
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const heads = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
  if (heads.length > 2) table.dataset.wide = "";
  for (const row of table.querySelectorAll("tbody tr"))
    [...row.cells].forEach((cell, column) => (cell.dataset.head = heads[column]));
  for (const code of table.querySelectorAll("code"))
    for (const text of [...code.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE)) {
      const parts = text.data.split(/(?<=[._/(,=:-])(?=\w)/);
      text.replaceWith(...parts.flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part])));
    }
}

document.querySelector(".md-search")?.setAttribute("aria-label", "Search"); // a dialog needs a name
