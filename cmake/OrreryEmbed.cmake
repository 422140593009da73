# The page of report.html as strings in the binary: our own files of orchestrator/run/report_page and
# the charting library dygraphs (MIT) from Debian's and Ubuntu's package libjs-dygraphs.
#
# Included, it adds the generated source to orrery_orchestrator_run. Run as a script (cmake -P), it
# writes that source.
if(CMAKE_SCRIPT_MODE_FILE)
  set(source "// Generated from orchestrator/run/report_page and dygraphs.\n")
  string(APPEND source "#include \"orchestrator/run/report_assets.h\"\n")
  string(APPEND source "namespace orrery::run::assets {\n")
  foreach(pair "kPageHtml|${PAGE}/page.html" "kPageCss|${PAGE}/page.css" "kPageJs|${PAGE}/page.js"
               "kSamplesJs|${PAGE}/samples.js" "kChartsJs|${DYGRAPHS}/dygraph.min.js"
               "kChartsCss|${DYGRAPHS}/dygraph.min.css")
    string(REPLACE "|" ";" parts "${pair}")
    list(GET parts 0 name)
    list(GET parts 1 path)
    file(READ "${path}" content)
    string(APPEND source "const std::string_view ${name} = R\"asset(${content})asset\";\n")
  endforeach()
  string(APPEND source "}  // namespace orrery::run::assets\n")
  file(WRITE "${OUT}" "${source}")
  return()
endif()

find_path(ORRERY_DYGRAPHS dygraph.min.js PATHS /usr/share/javascript/dygraphs
          NO_CMAKE_FIND_ROOT_PATH)
if(NOT ORRERY_DYGRAPHS)
  message(FATAL_ERROR "dygraphs is missing: apt-get install libjs-dygraphs")
endif()
set(page ${CMAKE_SOURCE_DIR}/orchestrator/run/report_page)
set(assets ${CMAKE_BINARY_DIR}/report_assets.cc)
add_custom_command(
  OUTPUT ${assets}
  COMMAND ${CMAKE_COMMAND} -DPAGE=${page} -DDYGRAPHS=${ORRERY_DYGRAPHS} -DOUT=${assets}
          -P ${CMAKE_CURRENT_LIST_FILE}
  DEPENDS ${page}/page.html ${page}/page.css ${page}/page.js ${page}/samples.js
          ${ORRERY_DYGRAPHS}/dygraph.min.js ${CMAKE_CURRENT_LIST_FILE}
  VERBATIM)
target_sources(orrery_orchestrator_run PRIVATE ${assets})
