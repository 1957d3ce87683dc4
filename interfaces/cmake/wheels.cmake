# Read only when pip (scikit-build-core) or colcon builds this package against the ROS 2 wheels.
# The wheels install into the virtual environment itself, so that is the ament prefix.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND "${Python3_EXECUTABLE}" -c "import sys; print(sys.prefix)"
  OUTPUT_VARIABLE _prefix OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(PREPEND CMAKE_PREFIX_PATH "${_prefix}")
set(ENV{AMENT_PREFIX_PATH} "${_prefix}")
set(BUILD_TESTING OFF)

# Targets of the wheels name include folders that the wheels do not carry; CMake refuses those.
function(_strip_missing_includes)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(includes ${target} INTERFACE_INCLUDE_DIRECTORIES)
    if(includes)
      set(kept "")
      foreach(folder IN LISTS includes)
        if(folder MATCHES "^\\$<" OR EXISTS "${folder}")
          list(APPEND kept "${folder}")
        endif()
      endforeach()
      set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${kept}")
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL _strip_missing_includes)
