// All exponents, sortable. A long table is built in full on request only: a large model has ten thousand rows.
const FIRST_ROWS = 100;
const COLUMNS = [
  { head: "module", key: (row) => row.module, text: (row) => data.modules[row.module] || "(the model)", kind: "name" },
  { head: "role", key: (row) => row.role, text: (row) => row.role },
  { head: "quantity", key: (row) => row.quantity, text: (row) => data.quantities[row.quantity] },
  { head: "step", key: (row) => row.step, text: (row) => row.step ?? "", kind: "number" },
  { head: "exponent", key: (row) => row.exponent, text: (row) => signed(row.exponent), kind: "number" },
  { head: "interval", key: (row) => row.high - row.low, text: interval, kind: "number" },
  { head: "predicted", key: (row) => row.predicted, text: (row) => plain(row.predicted), kind: "number" },
  { head: "verdict", key: (row) => (words.indexOf(row.verdict) + 1) || Infinity, node: (row) => badge(row.verdict) },
  { head: "cause", key: (row) => row.cause, text: (row) => row.cause },
];
const sorting = { column: null, sign: 1, all: false };

function compare(a, b) {
  const [x, y] = [sorting.column.key(a), sorting.column.key(b)];
  if (x == null || y == null) return (x == null) - (y == null); // missing values stay at the end
  return sorting.sign * (x < y ? -1 : x > y ? 1 : 0);
}

function sortBy(column) {
  sorting.sign = sorting.column === column ? -sorting.sign : 1;
  sorting.column = column;
  showTable();
}

function heading(column) {
  const cell = element("th", { textContent: column.head, className: column.kind === "number" ? "number" : "", tabIndex: 0, scope: "col" });
  if (sorting.column === column) cell.setAttribute("aria-sort", sorting.sign > 0 ? "ascending" : "descending");
  cell.addEventListener("click", () => sortBy(column));
  cell.addEventListener("keydown", (event) => event.key === "Enter" && sortBy(column));
  return cell;
}

function cellOf(column, row) {
  const cell = element("td", { className: column.kind ?? "" });
  cell.append(column.node ? column.node(row) : String(column.text(row)));
  return cell;
}

function showTable() {
  const selected = rows.filter((row) => visible(row) && (state.step === null || row.step === state.step));
  if (sorting.column) selected.sort(compare);
  const part = sorting.all ? selected : selected.slice(0, FIRST_ROWS);
  const table = $("exponents");
  table.tHead.replaceChildren(element("tr", {}, COLUMNS.map(heading)));
  table.tBodies[0].replaceChildren(...part.map((row) => element("tr", {}, COLUMNS.map((column) => cellOf(column, row)))));
  $("more").hidden = part.length === selected.length;
  $("more").textContent = `Show all ${selected.length} rows`;
}

$("more").addEventListener("click", () => {
  sorting.all = true;
  showTable();
});
