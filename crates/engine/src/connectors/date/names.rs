//! The names of months, in English and other languages found in feeds.
//!
//! A name that means different months in different languages is rejected: `lipanj` is June in Croatian and `lipiec` is
//! July in Polish, so `lip` is neither. Days of the week are not listed, because the parser skips the words before a
//! date.

/// The month from 1 to 12 that `word` means: a three-letter English abbreviation, or at least the first three letters
/// of its name in any of the languages.
pub(super) fn month(word: &str) -> Option<i8> {
    let word: String = word.chars().flat_map(char::to_lowercase).filter_map(folded).collect();
    if word.chars().count() < 3 {
        return None;
    }
    let named = |known: fn(&str, &str) -> bool| {
        let months = MONTHS.iter().zip(1_i8..);
        let mut months = months
            .filter(|(names, _)| names.split(' ').any(|name| known(name, &word)))
            .map(|(_, month)| month);
        (months.next(), months.next())
    };
    // The English abbreviations are those of the standards. A complete name counts even if another name starts with it.
    let short = ENGLISH.iter().position(|name| *name == word).and_then(|index| i8::try_from(index + 1).ok());
    match (short, named(|name, word| name == word)) {
        (Some(month), _) | (None, (Some(month), None)) => Some(month),
        (None, (Some(_), Some(_))) => None,
        (None, (None, _)) => match named(|name, word| name.starts_with(word)) {
            (Some(month), None) => Some(month),
            _ => None,
        },
    }
}

/// The lowercase letter without diacritics.
fn folded(letter: char) -> Option<char> {
    Some(match letter {
        '\u{300}'..='\u{36f}' => return None,
        'à' | 'á' | 'â' | 'ã' | 'ä' | 'å' | 'ą' => 'a',
        'ç' | 'ć' | 'č' => 'c',
        'è' | 'é' | 'ê' | 'ë' | 'ě' | 'ę' => 'e',
        'ì' | 'í' | 'î' | 'ï' | 'ı' => 'i',
        'ğ' => 'g',
        'ł' => 'l',
        'ñ' | 'ń' | 'ň' => 'n',
        'ò' | 'ó' | 'ô' | 'õ' | 'ö' => 'o',
        'ř' => 'r',
        'ś' | 'š' | 'ş' | 'ș' => 's',
        'ù' | 'ú' | 'û' | 'ü' | 'ů' => 'u',
        'ý' => 'y',
        'ź' | 'ż' | 'ž' => 'z',
        'ά' => 'α',
        'έ' => 'ε',
        'ί' | 'ϊ' => 'ι',
        'ό' => 'ο',
        'ύ' => 'υ',
        letter => letter,
    })
}

const ENGLISH: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// English, German, French, Spanish, Catalan, Portuguese, Italian, Romanian, Dutch, Danish, Norwegian, Swedish,
/// Finnish, Hungarian, Polish, Czech, Croatian, Turkish, Indonesian, Greek, Russian, Ukrainian, Bulgarian; without
/// diacritics, and also in the genitive where dates use it.
const MONTHS: [&str; 12] = [
    "january januar janner janvier enero gener janeiro gennaio ianuarie januari tammikuu tammikuuta styczen stycznia leden \
     ledna sijecanj sijecnja ocak ιανουαριος ιανουαριου январь января січень січня януари",
    "february februar feber fevrier febrero febrer fevereiro febbraio februarie februari helmikuu helmikuuta luty lutego \
     unor unora veljaca veljace subat φεβρουαριος φεβρουαριου февраль февраля лютий лютого февруари",
    "march marz mrz mars marzo marc marco martie maart mrt marts maaliskuu maaliskuuta marcius marzec marca brezen brezna \
     ozujak ozujka mart maret μαρτιος μαρτιου март марта березень березня",
    "april avril abril aprile aprilie huhtikuu huhtikuuta aprilis kwiecien kwietnia duben dubna travanj travnja nisan \
     απριλιος απριλιου апрель апреля квітень квітня април",
    "may mai mayo maig maio maggio mei maj toukokuu toukokuuta majus maja kveten kvetna svibanj svibnja mayis μαιος μαιου \
     май мая травень травня",
    "june juni juin junio juny junho giugno iunie kesakuu kesakuuta junius czerwiec czerwca cerven cervna lipanj lipnja \
     haziran ιουνιος ιουνιου июнь июня червень червня юни",
    "july juli juillet julio juliol julho luglio iulie heinakuu heinakuuta julius lipiec lipca cervenec cervence srpanj \
     srpnja temmuz ιουλιος ιουλιου июль июля липень липня юли",
    "august aout agosto agost augustus augusti elokuu elokuuta augusztus sierpien sierpnia srpen srpna kolovoz kolovoza \
     agustos agustus αυγουστος αυγουστου август августа серпень серпня",
    "september septembre septiembre setembre setembro settembre septembrie syyskuu syyskuuta szeptember wrzesien wrzesnia \
     zari rujan rujna eylul σεπτεμβριος σεπτεμβριου сентябрь сентября вересень вересня септември",
    "october oktober octobre octubre outubro ottobre octombrie lokakuu lokakuuta pazdziernik pazdziernika rijen rijna \
     listopad listopada ekim οκτωβριος οκτωβριου октябрь октября жовтень жовтня октомври",
    "november novembre noviembre novembro noiembrie marraskuu marraskuuta listopad listopada listopadu studeni studenog \
     studenoga kasim νοεμβριος νοεμβριου ноябрь ноября листопад листопада ноември",
    "december dezember decembre diciembre desembre dezembro dicembre decembrie desember joulukuu joulukuuta grudzien \
     grudnia prosinec prosince prosinac prosinca aralik δεκεμβριος δεκεμβριου декабрь декабря грудень грудня декември",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_are_recognized_in_many_languages() {
        for (month, words) in [
            (1, "Jan january JANUAR Jän janv gen enero Oca янв Ιαν"),
            (2, "Feb Sept.. févr fevrier Şub úno luty"),
            (3, "Mar March mars März Mrz mrt març marzo марта bře Mart"),
            (4, "Apr avr abril kwi nis duben"),
            (5, "May mai mei maj mayo mag Mayıs мая"),
            (6, "Jun juin giu haz červen červn cze iun ιουν"),
            (7, "Jul juil lug tem července červenc lipca iul juillet"),
            (8, "Aug août aout ago ağu srpna sie elo"),
            (9, "Sep Sept set wrz zář eyl"),
            (10, "Oct Okt out ott eki paź říj"),
            (11, "Nov noi marras kas lokakuu.. studeni ноя листопада listopadu"),
            (12, "Dec Dez déc dic des ara gru pro дек"),
        ] {
            for word in words.split(' ').filter(|word| !word.contains("..")) {
                assert_eq!(super::month(word), Some(month), "{word}");
            }
        }
    }

    #[test]
    fn ambiguous_and_unknown_names_are_rejected() {
        for word in [
            "", "ja", "mä", "jui", "lip", "lis", "listopad", "srp", "červ", "ju", "lun", "foo", "mond",
            "janx",
        ] {
            assert_eq!(month(word), None, "{word}");
        }
    }

    #[test]
    fn english_names_and_their_abbreviations_are_always_recognized() {
        let names = "January February March April May June July August September October November December";
        for (name, expected) in names.split(' ').zip(1_i8..) {
            for length in 3..=name.len() {
                assert_eq!(month(&name[..length]), Some(expected), "{}", &name[..length]);
            }
        }
    }
}
