#include "vitrum/train/svg_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

// Plain colours rather than variables: converters to PDF and PNG know no variables, nor themes, and
// use the light one.
constexpr std::string_view kStyle = R"(<style>
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#52606d}
.bg{fill:#fff}.head{font-size:14px;font-weight:600;fill:#1f2933}.small{font-size:11px}
.grid{stroke:#e4e7eb}.axis{stroke:#9aa5b1}.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.s0{stroke:#2563eb}.s1{stroke:#ea580c}.s2{stroke:#0d9488}.d0{fill:#2563eb}.d1{fill:#ea580c}.d2{fill:#0d9488}
.cell{fill:#1e4fc2}.frame{fill:none;stroke:#cbd2d9}.low{fill:#3e4c59}.high{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#9aa5b1}.bg{fill:#12181f}.head{fill:#e4e7eb}
.grid{stroke:#262f3a}.axis{stroke:#616e7c}
.s0{stroke:#60a5fa}.s1{stroke:#fb923c}.s2{stroke:#2dd4bf}.d0{fill:#60a5fa}.d1{fill:#fb923c}.d2{fill:#2dd4bf}
.cell{fill:#7db5ff}.frame{stroke:#3e4c59}.low{fill:#cbd2d9}.high{fill:#0b1220}}
</style>
)";

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

std::string svg_begin(int width, int height, std::string_view title) {
  const std::string escaped = xml_escape(title);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\" "
      "aria-label=\"{2}\">\n<title>{2}</title>\n{3}"
      "<rect class=\"bg\" width=\"{0}\" height=\"{1}\" rx=\"8\"/>\n",
      width, height, escaped, kStyle);
}

Ticks nice_ticks(double low, double high, int count, bool whole) {
  // One value, or values a double hardly tells apart: make room round them.
  if (high - low <= 1e-9 * std::max(std::abs(low), std::abs(high))) {
    const double pad = low == 0 ? 1 : std::abs(low) / 2;
    low -= pad, high += pad;
  }
  const double raw = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double lead = raw / power;
  double step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  if (whole) step = std::max(1.0, step);
  Ticks ticks{{}, step};
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  for (double i = 0; i <= last - first; ++i) ticks.at.push_back((first + i) * step);
  return ticks;
}

std::string tick_label(double x, double step) {
  if (std::abs(x) < step / 2) return "0";
  const int digits = static_cast<int>(std::ceil(-std::log10(step) - 1e-9));
  if (digits <= 3 && std::abs(x) < 1e6) return fmt::format("{:.{}f}", x, std::max(0, digits));
  const int exponent = static_cast<int>(std::floor(std::log10(std::abs(x)) + 1e-9));
  return fmt::format("{:g}e{}", std::round(x / step) * step / std::pow(10, exponent), exponent);
}

}  // namespace vitrum
