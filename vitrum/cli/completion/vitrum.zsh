#compdef vitrum
# Completion of vitrum for zsh. The binary that is called says what may come next.
_vitrum() {
  local line
  local -a fields whole open paths
  for line in "${(@f)$(_call_program vitrum "${words[1]}" completion zsh -- \
      "${(@q)${(@Q)words[1,CURRENT-1]}}" "${(q)${(Q)PREFIX}}")}"; do
    fields=("${(@ps:\t:)line}")
    case $fields[1] in
      '') ;;
      :files | :directories) paths=("$fields[@]") ;;
      *[:=]) open+=("${fields[1]//:/\\:}:$fields[2]") ;;
      *) whole+=("${fields[1]//:/\\:}:$fields[2]") ;;
    esac
  done
  _describe vitrum whole -- open -S ''
  (($#paths)) || return
  compset -P "${(b)paths[2]}"
  case $paths[1]$paths[3] in
    :directories) _files -/ ;;
    :files) _files ;;
    *) _files -g "*$paths[3]" ;;
  esac
}
if [[ $funcstack[1] == _vitrum ]]; then
  _vitrum "$@"
else
  compdef _vitrum vitrum
fi
