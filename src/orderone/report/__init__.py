"""Draw records: one HTML file that opens offline, or a PNG. Nothing is trained or fitted here."""

from orderone.report.figures import write_figures
from orderone.report.gallery import gallery_html, write_gallery
from orderone.report.html import html, write_html
from orderone.report.png import write_png
from orderone.report.sizes import write_sizes
from orderone.report.transfer import write_transfer
from orderone.report.transfer_png import write_transfer_png

__all__ = [
    "gallery_html",
    "html",
    "write_figures",
    "write_gallery",
    "write_html",
    "write_png",
    "write_sizes",
    "write_transfer",
    "write_transfer_png",
]
