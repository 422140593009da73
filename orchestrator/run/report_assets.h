// The parts of report.html that do not depend on a run; see cmake/OrreryEmbed.cmake.
#pragma once

#include <string_view>

namespace orrery::run::assets {

extern const std::string_view kPageHtml;  // with @TITLE@, @CSS@, @DATA@, @CHARTS@, @SCRIPT@
extern const std::string_view kPageCss;
extern const std::string_view kPageJs;     // curves
extern const std::string_view kSamplesJs;  // sample browser
extern const std::string_view kChartsJs;   // dygraphs
extern const std::string_view kChartsCss;

}  // namespace orrery::run::assets
