# Completion of vitrum for fish. The binary that is called says what may come next.
function __vitrum_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct | string collect)
    for line in ($words[1] completion fish -- $words "$typed" 2>/dev/null)
        set -l fields (string split \t -- $line)
        switch $fields[1]
            case ':files' ':directories'
                set -l path (string sub -s (math (string length -- "$fields[2]") + 1) -- "$typed")
                for found in (complete -C "'' $path")
                    set -l name (string split -f 1 \t -- $found)
                    if string match -q -- '*/' $name
                        or test $fields[1] = :files && string match -q -- "*$fields[3]" $name
                        echo "$fields[2]$name"
                    end
                end
            case '*'
                echo $line
        end
    end
end
complete -c vitrum -f -a '(__vitrum_complete)'
