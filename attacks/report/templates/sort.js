"use strict";
const table = document.getElementById("runs"), body = table.tBodies[0];
const heads = [...table.tHead.rows[1].cells];
const value = (row, column) => row.cells[column].dataset.value;
const compare = { number: (a, b) => a - b, text: (a, b) => a.localeCompare(b, undefined, { numeric: true }) };
heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
  const down = head.ariaSort === "ascending", way = down ? -1 : 1, order = compare[head.dataset.type];
  const known = (row) => value(row, column) !== "";
  const rows = [...body.rows].sort((a, b) =>
    known(b) - known(a) || (known(a) ? way * order(value(a, column), value(b, column)) : 0));
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
  document.getElementById("said").textContent = `Sorted by ${head.textContent}, ${down ? "descending" : "ascending"}`;
}));
