#include <fmt/format.h>

#include <iterator>

#include "vitrum/core/utf8.h"
#include "vitrum/train/picture.h"

namespace vitrum {
namespace {

// Plain colours rather than variables: converters to PDF and PNG know no variables, nor themes, and
// use the light one.
constexpr std::string_view kStyle = R"(<style>
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#52606d}
.bg{fill:#fff}.head{font-weight:600;fill:#1f2933}
.grid{stroke:#e4e7eb}.axis{stroke:#9aa5b1}.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.dots{stroke-dasharray:0.1 5}
.s0{stroke:#2563eb}.s1{stroke:#ea580c}.s2{stroke:#0d9488}.s3{stroke:#9333ea}.s4{stroke:#b45309}.s5{stroke:#db2777}.s6{stroke:#4d7c0f}.s7{stroke:#475569}
.d0{fill:#2563eb}.d1{fill:#ea580c}.d2{fill:#0d9488}.d3{fill:#9333ea}.d4{fill:#b45309}.d5{fill:#db2777}.d6{fill:#4d7c0f}.d7{fill:#475569}
.cell{fill:#1e4fc2}.frame{stroke:#cbd2d9}.grid,.axis,.frame{fill:none}.low{fill:#3e4c59}.high{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#9aa5b1}.bg{fill:#12181f}.head{fill:#e4e7eb}
.grid{stroke:#262f3a}.axis{stroke:#616e7c}
.s0{stroke:#60a5fa}.s1{stroke:#fb923c}.s2{stroke:#2dd4bf}.s3{stroke:#c084fc}.s4{stroke:#fbbf24}.s5{stroke:#f472b6}.s6{stroke:#a3e635}.s7{stroke:#94a3b8}
.d0{fill:#60a5fa}.d1{fill:#fb923c}.d2{fill:#2dd4bf}.d3{fill:#c084fc}.d4{fill:#fbbf24}.d5{fill:#f472b6}.d6{fill:#a3e635}.d7{fill:#94a3b8}
.cell{fill:#7db5ff}.frame{stroke:#3e4c59}.low{fill:#cbd2d9}.high{fill:#0b1220}}
</style>
)";

constexpr const char* kClasses[] = {"", "head", "low", "high", "grid", "axis", "frame", "cell"};

std::string_view escape_of(char32_t c) {
  switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return {};
  }
}

template <class... Args>
void put(std::string& svg, fmt::format_string<Args...> format, Args&&... args) {
  svg += fmt::format(format, std::forward<Args>(args)...);
}

struct Writer {
  std::string& svg;

  void operator()(const LineShape& line) const {
    if (line.ink != Ink::kSeries) {
      put(svg, "<path class=\"{}\" d=\"", kClasses[static_cast<size_t>(line.ink)]);
      for (const Point& p : line.points)
        put(svg, "{}{:.1f} {:.1f}", &p == line.points.data() ? 'M' : 'L', p.x, p.y);
    } else {
      put(svg, "<polyline class=\"line s{}{}\" points=\"", line.series % kSeriesInks,
          line.dotted ? " dots" : "");
      for (const Point& p : line.points) put(svg, "{:.1f},{:.1f} ", p.x, p.y);
    }
    svg += "\"/>\n";
  }
  void operator()(const DotShape& dot) const {
    put(svg, "<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"/>\n",
        dot.series % kSeriesInks, dot.at.x, dot.at.y, dot.radius);
  }
  void operator()(const TextShape& text) const {
    static constexpr const char* kAnchors[] = {"", " text-anchor=\"middle\"",
                                               " text-anchor=\"end\""};
    put(svg, "<text");
    if (text.ink != Ink::kText) put(svg, " class=\"{}\"", kClasses[static_cast<size_t>(text.ink)]);
    if (text.size != 12) put(svg, " style=\"font-size:{:.3g}px\"", text.size);
    if (text.angle == 0)
      put(svg, " x=\"{:.1f}\" y=\"{:.1f}\"", text.at.x, text.at.y);
    else
      put(svg, " transform=\"translate({:.1f} {:.1f}) rotate({:g})\"", text.at.x, text.at.y,
          text.angle);
    put(svg, "{}>{}</text>\n", kAnchors[static_cast<size_t>(text.anchor)], xml_escape(text.text));
  }
  // One path a shade, so that a thousand classes still make a small file.
  void operator()(const CellsShape& cells) const {
    put(svg,
        "<path class=\"cell\" shape-rendering=\"crispEdges\" fill-opacity=\"{:.3g}\" "
        "transform=\"translate({} {}) scale({:.6g} {:.6g})\" d=\"",
        cells.opacity, cells.origin.x, cells.origin.y, cells.width, cells.height);
    for (const auto& [column, row] : cells.at) put(svg, "M{} {}h1v1h-1z", column, row);
    svg += "\"/>\n";
  }
};

}  // namespace

std::string xml_escape(std::string_view text) {
  std::string out;
  for (CodePoint c; !text.empty(); text.remove_prefix(c.bytes)) {
    c = decode_utf8(text);
    // XML 1.0 has no way to spell these at all.
    const bool illegal = c.value < 0x20 || c.value == 0xFFFE || c.value == 0xFFFF;
    const std::string_view escape = illegal ? "?" : escape_of(c.value);
    out += escape.empty() ? spelling(text, c) : escape;
  }
  return out;
}

std::string to_svg(const Picture& picture) {
  const std::string title = xml_escape(picture.title);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\" "
      "aria-label=\"{2}\">\n<title>{2}</title>\n{3}"
      "<rect class=\"bg\" width=\"{0}\" height=\"{1}\" rx=\"8\"/>\n",
      picture.width, picture.height, title, kStyle);
  for (const auto& shape : picture.shapes) std::visit(Writer{svg}, shape);
  return svg + "</svg>\n";
}

}  // namespace vitrum
