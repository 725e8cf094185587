#include "vitrum/core/shown.h"

#include "vitrum/core/utf8.h"

namespace vitrum {

std::string shown(std::string_view text) { return fit_columns(text, 80); }

std::string one_line(std::string_view message) { return fit_columns(printable(message), 4000); }

}  // namespace vitrum
