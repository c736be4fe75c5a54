# Weak (shareable) definitions in an object that was compiled for one ISA could replace those of another at link time
# and run instructions that the CPU lacks. NM: the nm program; OBJECTS: the objects, separated by |.
string(REPLACE "|" ";" OBJECTS "${OBJECTS}")
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE rc)
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "nm failed on ${object}")
  endif()
  string(REGEX MATCHALL "[0-9a-fA-F]+ [WwVvu] [^\n]+" shared "${symbols}")
  if(shared)
    message(FATAL_ERROR "${object} defines symbols that the linker may share between ISAs: ${shared}")
  endif()
endforeach()
