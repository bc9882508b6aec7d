// Bundle the traces of entry.js, compress them, and collect the licences of all bundled packages.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../../src/orderone/report/page");
const { version } = JSON.parse(readFileSync(join(here, "node_modules/plotly.js/package.json")));

const { metafile, outputFiles } = await build({
  absWorkingDir: here,
  entryPoints: ["entry.js"],
  format: "iife",
  globalName: "Plotly",
  bundle: true,
  minify: true,
  write: false,
  metafile: true,
  legalComments: "none", // the licences are in a file of their own
  charset: "ascii",
  loader: { ".css": "empty" }, // styles of maps, which this bundle does not draw
  target: "es2020",
  define: { global: "window", "define.amd": "false", "process.env.NODE_DEBUG": "false" },
  banner: { js: `/* plotly.js ${version} (scatter, bar, contour, heatmap, histogram), MIT */` },
});
const script = outputFiles[0].text.replaceAll("</script", "<\\/script").trimEnd() + "\n";
writeFileSync(join(target, "plotly.min.js.gz"), gzipSync(script, { level: 9 }));

const names = new Set();
for (const path of Object.keys(metafile.inputs)) {
  const parts = path.split("node_modules/").at(-1).split("/");
  if (path.includes("node_modules/") && !path.endsWith(".css")) names.add(parts.slice(0, parts[0].startsWith("@") ? 2 : 1).join("/"));
}
const licences = [...names].sort().map((name) => {
  const folder = join(here, "node_modules", name);
  const { version, license, author } = JSON.parse(readFileSync(join(folder, "package.json")));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  const holder = typeof author === "object" ? author.name : author;
  const text = file ? readFileSync(join(folder, file), "utf8").trim() : `${license}, ${holder}`;
  return `${name} ${version}\n\n${text}\n`;
});
writeFileSync(join(target, "plotly-licences.txt"), licences.join(`\n${"-".repeat(80)}\n\n`));
console.log(`plotly.js ${version}: ${script.length} bytes, ${names.size} packages`);
