# Completion of vitrum for bash. The binary that is called says what may come next.
_vitrum() {
  # Bash cuts words at ':' and '=' (COMP_WORDBREAKS), vitrum does not: join what no space separates.
  local words=() rest=$COMP_LINE i word
  for ((i = 0; i <= COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if ((i == 0)) || [[ $rest == [[:space:]]* ]]; then words+=(""); fi
    rest=${rest#"${rest%%[![:space:]]*}"}
    rest=${rest#"$word"}
    if ((i == COMP_CWORD)); then word=${word:0:${#word}-(${#COMP_LINE}-COMP_POINT-${#rest})}; fi
    words[-1]+=$word
  done
  local typed=${words[-1]} word_start
  word_start=${typed%"${typed##*[:=]}"}  # what bash does not count as part of the word

  local line help prefix suffix path
  COMPREPLY=()
  while IFS= read -r line; do
    IFS=$'\t' read -r word help <<<"$line"
    case $word in
      :files | :directories)
        IFS=$'\t' read -r word prefix suffix <<<"${line//$'\t'/$'\t '}"
        prefix=${prefix# } suffix=${suffix# }
        path=${typed#"$prefix"}
        compopt -o filenames
        if [[ $word == :directories ]]; then
          mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$path")
        elif [[ -n $suffix ]]; then
          mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$path"; compgen -f -X "!*$suffix" -- "$path")
        else
          mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$path")
        fi
        ;;
      *)
        COMPREPLY+=("${word#"$word_start"}")
        if [[ $word == *[:=] ]]; then compopt -o nospace; fi
        ;;
    esac
  done < <("$1" completion bash -- "${words[@]}" 2>/dev/null)
}
complete -F _vitrum vitrum
